"""Engines that forget to take new weights, for tests of the guard against them."""

from oblr.rollout.hf import HFEngine
from oblr.rollout.vllm import VLLMEngine


class ForgetfulHF(HFEngine):
    def sync(self, weights, version):
        self.weight_version = version


class ForgetfulVLLM(VLLMEngine):
    def sync(self, weights, version):
        self.weight_version = version
