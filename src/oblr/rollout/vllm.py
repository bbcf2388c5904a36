"""vLLM in this process; written for vLLM 0.24 to 0.32."""

import atexit
import gc
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, GarbledError, RunError, SettingError
from oblr.kinds import Count, Few, PositiveShare, Precision, checked
from oblr.problem import Completion
from oblr.rollout.engine import Done, check_fresh, check_limits, precise, whole_prompts
from oblr.rollout.layers import read, repack_tied_head
from oblr.rollout.readback import Block, Part
from oblr.run.host import CXX, lacking
from oblr.run.meeting import LOOPBACK
from oblr.run.private import of_process
from oblr.run.randomness import kept_random_state
from oblr.run.ranks import Ranks, of_run

atexit.register(gc.unfreeze)  # what is frozen while an engine lives would be found leaking at the end


@checked("rollout.engines.vllm")
class VLLMEngine:
    """vLLM with weights that are replaced in place.

    It shares the GPU with the policy: asleep (vLLM's level 2) it keeps neither weights nor KV cache, and a sync wakes
    it up. Since it lives in the policy's process, the weights come to it one by one as they are. There is no such thing
    as sleep on a machine without GPU.

    Of several ranks each has an engine, or each group of ``tensor_parallel_size`` ranks shares one: then all ranks of a
    group generate for all of their prompts together, and keep their own.

    An engine that has died is taken down, and another takes its place. That has two limits, where the run ends with one
    line instead and goes on from its last checkpoint in a new process. Of several ranks none can take its engine down:
    with it vLLM ends the process group, which is the trainer's, too. On a GPU a process has at most one engine with
    sleep mode, and another only when vLLM's allocator has got everything back from the first.

    Args:
        model: folder or hub id whose architecture and tokenizer are served.
        dtype: precision that the engine computes in.
        max_model_len: longest prompt plus response, tokens.
        gpu_memory_utilization: share of the GPU for weights and KV cache.
        cpu_kv_cache_gib: memory for keys and values on a machine without GPU, GiB.
        enforce_eager: whether to do without CUDA graphs, which saves memory and takes longer; a machine without GPU has
            none anyway.
        max_num_batched_tokens: most tokens in one forward pass; None: vLLM chooses. Without GPU at least
            ``max_model_len``, since a prompt is computed in one pass there.
        max_num_seqs: most responses that are sampled at once; None: vLLM chooses.
        tensor_parallel_size: GPUs, and their ranks, that share a copy of the policy.
    """

    apart = in_flight = False

    def __init__(
        self,
        model: str | None,
        dtype: Precision,
        max_model_len: Count | None,
        gpu_memory_utilization: PositiveShare = 0.4,
        cpu_kv_cache_gib: Few = 1,
        enforce_eager: bool = False,
        max_num_batched_tokens: Count | None = None,
        max_num_seqs: Count | None = None,
        tensor_parallel_size: Few = 1,
    ):
        check_limits("vllm", max_num_batched_tokens, max_num_seqs)
        # an evaluation knows both in time
        self.model, self.dtype, self.max_model_len = cast(str, model), dtype, cast(int, max_model_len)
        self.gpu_memory_utilization, self.cpu_kv_cache_gib = gpu_memory_utilization, cpu_kv_cache_gib
        self.enforce_eager, self.tensor_parallel_size = enforce_eager, tensor_parallel_size
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs
        #: the ranks that share this engine
        self.sharing = Ranks()
        self.weight_version: int | None = None
        self.gpu = torch.cuda.is_available()
        self.asleep = False
        self._llm: Any = None

    @kept_random_state()  # vLLM seeds them
    def start(self) -> None:
        self.weight_version = None
        if self._llm is not None and of_run().group is not None:
            raise RunError(f"of several ranks none can start its vLLM engine again in its process {GO_ON}")
        try:
            self.close()
        except RuntimeError as error:
            raise RunError(f"the vLLM engine that died cannot be taken down: {error} {GO_ON}") from error
        if self.gpu and held_by_vllm():
            raise RunError(f"vLLM has one engine with sleep mode a process, and its memory is still held {GO_ON}")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine lives and dies with this process
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(self.cpu_kv_cache_gib)
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        # Never used where log-probabilities are asked for, but compiled when vLLM starts, which takes nvcc.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        os.environ["VLLM_RPC_BASE_PATH"] = str(of_process())
        os.environ |= precise(self.dtype)
        if of_run().group is None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        threads, preloaded = torch.get_num_threads(), os.environ.get("LD_PRELOAD", "")
        settings = self._among_ranks() | self._of_the_device()
        from vllm import LLM

        gc.collect()
        gc.freeze()  # what is imported: vLLM goes through it five times while it starts
        with own_temporary_files():
            self._llm = LLM(
                model=self.model,
                dtype=self.dtype,
                max_model_len=self.max_model_len,
                max_num_batched_tokens=whole_prompts(self.max_num_batched_tokens, self.max_model_len, self.gpu),
                max_num_seqs=self.max_num_seqs,
                skip_tokenizer_init=True,
                generation_config="vllm",  # sampling settings are ours, not those of the model's folder
                # Of the distribution that is sampled from, temperature included.
                logprobs_mode="processed_logprobs",
                seed=0,
                **settings,
            )
        torch.set_num_threads(threads)
        # What vLLM puts there is for workers in processes of their own; a path with a space is an error in each.
        os.environ["LD_PRELOAD"] = preloaded

    def _of_the_device(self) -> dict[str, Any]:
        """Settings that only a GPU takes, and that only a machine without one does."""
        if not self.gpu:
            return {
                "enforce_eager": True,
                "enable_chunked_prefill": False,
                "worker_cls": "oblr.rollout.cpu_worker.RunsOwnWorker",
            }
        return {
            "enforce_eager": self.enforce_eager,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_sleep_mode": True,
        }

    def _among_ranks(self) -> dict[str, Any]:
        """Settings of an engine on this rank's device, in one world with the engines of the other ranks."""
        size, ranks = self.tensor_parallel_size, of_run()
        if size < 1 or ranks.count % size:
            raise SettingError(
                "rollout.engines.vllm.tensor_parallel_size",
                f"{ranks.count} devices do not make groups of {size}",
                "use a divisor of trainer.devices × trainer.num_nodes",
            )
        if ranks.group is None:
            return {}
        self.sharing = ranks.split(size)
        # What torchrun would have set.
        os.environ["RANK"] = str(ranks.rank)
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if self.gpu else ranks.rank)
        return {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": size}

    @kept_random_state()
    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.weight_version = None
        if self.asleep:
            torch.cuda.empty_cache()  # what the policy's allocator keeps in reserve
            with deaths():
                self._llm.wake_up(tags=["weights"])
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        if self.asleep:
            with deaths():
                self._llm.wake_up(tags=["kv_cache", "scheduling"])
            self.asleep = False
        if not self.gpu:
            self._llm.apply_model(repack_tied_head)
        self._llm.reset_prefix_cache()
        self.weight_version = version

    @kept_random_state()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        check_fresh(self)
        if self.sharing.count == 1:
            return self._generate(prompts, sampling, seeds, done)
        shares = self.sharing.objects(list(zip(prompts, seeds, strict=True)))
        everybodys = [one for share in shares for one in share]
        first = sum(len(share) for share in shares[: self.sharing.rank])
        own = range(first, first + len(prompts))

        def ended(query: int, j: int, completion: Completion) -> None:
            if done is not None and query in own:
                done(query - first, j, completion)

        groups = self._generate([prompt for prompt, _ in everybodys], sampling, [seed for _, seed in everybodys], ended)
        return [groups[query] for query in own]

    def _generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], done: Done | None
    ) -> list[list[Completion]]:
        from vllm import SamplingParams

        asked = [list(prompt) for prompt in prompts for _ in range(sampling.n)]
        requests = [{"prompt_token_ids": prompt} for prompt in asked]
        params = [
            SamplingParams(
                temperature=sampling.temperature,
                max_tokens=sampling.max_new_tokens,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                stop_token_ids=list(sampling.end_ids),
                ignore_eos=True,  # the folder's own are among the former where they are ends
                logprobs=0,
                flat_logprobs=True,  # in lists of numbers, not in a dict for each token
                detokenize=False,
                seed=seed + j,  # without, a GPU's model runner draws one from NumPy's generator, alike on all ranks
            )
            for seed in seeds
            for j in range(sampling.n)
        ]
        found: dict[int, Completion] = {}
        with deaths(), self._compiling():
            self._llm.reset_prefix_cache()  # what earlier calls left there was rounded in their company
            for place, output in self._outputs(requests, params):
                if output.prompt_token_ids != asked[place]:
                    raise GarbledError("the rollout engine answered other prompts than it was asked")
                (sample,) = output.outputs
                found[place] = _completion(sample)
                if done is not None:
                    done(*divmod(place, sampling.n), found[place])
        if len(found) < len(asked):
            raise GarbledError(f"the rollout engine gave {len(found)} responses of {len(asked)}")
        return [[found[q * sampling.n + j] for j in range(sampling.n)] for q in range(len(prompts))]

    def _outputs(self, requests: list[dict[str, list[int]]], params: list[Any]) -> Iterator[tuple[int, Any]]:
        """Answers of vLLM in the order in which they end, each with the place of its request."""
        names = self._llm.enqueue(requests, params, use_tqdm=False)
        places = {name.partition("-")[0]: place for place, name in enumerate(names)}  # vLLM adds random characters
        engine = self._llm.llm_engine
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.request_id not in places:
                    raise GarbledError("the rollout engine answered what it was not asked")
                yield places.pop(output.request_id), output

    def _compiling(self) -> Any:
        """Without GPU and C++ compiler, the one function that vLLM would compile there runs as it is written."""
        return torch.compiler.set_stance("default" if self.gpu or lacking(*CXX) is None else "force_eager")

    def read(self, blocks: Sequence[Block]) -> list[list[Part]]:
        parts = self._llm.apply_model(lambda model: read(model, blocks))
        return [part for share in self.sharing.objects(parts) for part in share]

    def sleep(self) -> None:
        if self.gpu and not self.asleep:
            self.weight_version, self.asleep = None, True
            self._llm.sleep(level=2)

    def close(self) -> None:
        if self._llm is None:
            return
        if of_run().group is not None:  # vLLM's shutdown would destroy the process group, which is the trainer's
            self.sleep()
        else:
            with nullcontext() if self.gpu else no_collections():
                self._llm.llm_engine.engine_core.shutdown()
            self._llm, self.asleep = None, False
            gc.unfreeze()
            gc.collect()  # its tensors are in cycles
            if self.gpu:
                torch.cuda.empty_cache()


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """What vLLM makes for its processes to meet lies where no other user may look."""
    place, tempfile.tempdir = tempfile.tempdir, str(of_process())
    try:
        yield
    finally:
        tempfile.tempdir = place


@contextmanager
def no_collections() -> Iterator[None]:
    """vLLM's shutdown goes through all that is imported three times; once, after it, will do."""
    collect, gc.collect = gc.collect, lambda generation=2: 0
    try:
        yield
    finally:
        gc.collect = collect


GO_ON = "(go on with ckpt_path=last; rollout.engine=server can be restarted)"


def held_by_vllm() -> int:
    """Bytes that engines with sleep mode, living or dead, still have in this process."""
    from vllm.device_allocator.cumem import CuMemAllocator

    return 0 if CuMemAllocator.instance is None else CuMemAllocator.instance.get_current_usage()


@contextmanager
def deaths() -> Iterator[None]:
    """What vLLM fails of, an accelerator without memory above all, leaves nothing that could be gone on with."""
    try:
        yield
    except RunError:
        raise
    except RuntimeError as error:
        raise EngineDiedError(f"vLLM failed: {' '.join(str(error).split())[:200]}") from error


def _completion(sample: Any) -> Completion:
    ids, drawn = list(sample.token_ids), sample.logprobs
    if drawn.token_ids != ids:
        raise GarbledError("the rollout engine gave log-probabilities of other tokens")
    return Completion(ids, list(drawn.logprobs), finished=sample.finish_reason == "stop")
