"""A server whose new weights always come into the midst of a batch."""

import threading

from oblr.rollout.server import ServerEngine


class MeetingServer(ServerEngine):
    """Asks for a batch that is ahead when the next weights are there, which go when the batch has begun."""

    def __init__(self, *given, **told):
        super().__init__(*given, **told)
        self.changed, self.come, self.syncs = threading.Condition(), 0, 0

    def generate(self, prompts, sampling, seeds, done=None):
        if threading.current_thread() is not threading.main_thread():
            with self.changed:
                self.come, next_one = self.come + 1, self.syncs + 1
                self.changed.notify_all()
                assert self.changed.wait_for(lambda: self.syncs == next_one, 60)
        return super().generate(prompts, sampling, seeds, done)

    def sync(self, weights, version):
        if version > 1:
            before = self._sampled()
            with self.changed:
                assert self.changed.wait_for(lambda: self.come == version - 1, 60)
                self.syncs += 1
                self.changed.notify_all()
            while self._sampled() == before:
                pass
        super().sync(weights, version)
