"""A server's worker that can be told to lose what it was sent, for a test of what notices."""

import torch

from oblr.rollout.transfer import HTTPTransfer


class SpoiledTransfer(HTTPTransfer):
    def spoil_second_copy(self) -> None:
        """One norm's weights of it are no longer the first copy's."""
        if self.vllm_config.parallel_config.data_parallel_index == 1:
            with torch.inference_mode():
                self.get_model().model.norm.weight.mul_(1.5)
