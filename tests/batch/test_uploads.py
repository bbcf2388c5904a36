"""What the host hands to a GPU: by a stand-in with CUDA's rules for copies."""

import pytest
import torch
from conftest import make_rollouts
from torch import Tensor

from oblr.batch.packing import pack
from oblr.kernels import on_tensor_cores, upload

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SENT = ("input_ids", "position_ids", "predictors", "targets", "behaviour_logprobs")


class Stream:
    """The host waits for copies from pageable memory; from pinned memory they are made later, when it has gone on.

    Until then torch's allocator gives a pinned block to nobody else, though its tensor is gone: here the queue has it.
    """

    def __init__(self) -> None:
        self.waits, self.queue, self.pinned = 0, list[tuple[Tensor, Tensor]](), list[Tensor]()

    def pin(self, x: Tensor) -> Tensor:
        self.pinned.append(x.clone())
        return self.pinned[-1]

    def copy(self, x: Tensor, non_blocking: bool) -> Tensor:
        there = torch.full_like(x, -7)
        if non_blocking and any(x is pinned for pinned in self.pinned):
            self.queue.append((there, x))
        else:
            self.waits += 1
            there.copy_(x)
        return there

    def synchronize(self) -> None:
        for there, x in self.queue:
            there.copy_(x)
        self.queue.clear()


@pytest.fixture
def stream(monkeypatch):
    stream, on_cpu = Stream(), Tensor.to

    def to(x, device, *args, non_blocking=False, **kwargs):
        return stream.copy(x, non_blocking) if device == CUDA else on_cpu(x, device, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "pin_memory", lambda x: stream.pin(x))
    return stream


def test_the_host_does_not_wait_for_a_micro_batch_to_be_copied(stream):
    packed, same = pack(make_rollouts([1, 5, 17, 3])), pack(make_rollouts([1, 5, 17, 3]))
    sent = packed.to(CUDA)
    for name in SENT:  # the next micro-batch is packed meanwhile, wherever that is put
        getattr(packed, name).fill_(0)
    assert stream.waits == 0
    assert len(stream.queue) == len(SENT)
    stream.synchronize()
    for name in SENT:
        assert torch.equal(getattr(sent, name), getattr(same, name)), name


def test_on_a_cpu_nothing_is_copied(stream):
    x = torch.arange(3)
    assert upload(x, CPU) is x
    assert not stream.pinned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_has_no_tensor_cores(dtype):
    assert not on_tensor_cores(torch.ones(2, dtype=dtype))
