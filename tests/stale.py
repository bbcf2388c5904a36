"""Engines that forget to take new weights, for tests of the guard against them."""

import os
import time

from oblr.rollout.hf import HFEngine
from oblr.rollout.vllm import VLLMEngine


class ForgetfulHF(HFEngine):
    def sync(self, weights, version):
        self.weight_version = version


class ForgetfulVLLM(VLLMEngine):
    def sync(self, weights, version):
        self.weight_version = version


class HangingHF(HFEngine):
    """From the second sync on, one rank hangs and the others wait for it in a collective."""

    def sync(self, weights, version):
        if version > 1 and os.environ.get("LOCAL_RANK", "1") == "1":
            time.sleep(1000)
        super().sync(weights, version)
