"""A server's worker that can be told to take its time, so that new weights find responses under way.

Who asks a server for its counters learns what its engine had sampled some time ago: of a small policy all of it, where
other programs run too.
"""

import time

from oblr.rollout.transfer import HTTPTransfer


class SlowTransfer(HTTPTransfer):
    def take_time(self, seconds: float) -> None:
        """Each pass of the model takes so much longer, from now on."""
        model = self.get_model()
        if not hasattr(model, "rest"):
            model.register_forward_pre_hook(lambda model, _: time.sleep(model.rest))
        model.rest = seconds
