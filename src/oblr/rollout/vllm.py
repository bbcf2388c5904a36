"""vLLM in this process. The only module that imports vllm; written for vLLM 0.24 to 0.32."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from oblr.errors import SettingError
from oblr.ranks import Ranks, of_run
from oblr.rollout.engine import check_fresh
from oblr.types import Completion, Sampling, Seeds


class VLLMEngine:
    """vLLM with weights that are replaced in place.

    It shares the GPU with the policy: asleep (vLLM's level 2) it keeps neither weights nor KV cache, and a sync wakes
    it up. Since it lives in the policy's process, the weights come to it one by one as they are. There is no such thing
    as sleep on a machine without GPU.

    Of several ranks each has an engine, or each group of ``tensor_parallel_size`` ranks shares one: then all ranks of a
    group generate for all of their prompts together, and keep their own.

    Args:
        model: path or hub id of the model.
        dtype: "float32" or "bfloat16".
        max_model_len: longest prompt plus response, tokens.
        gpu_memory_utilization: share of the GPU for weights and KV cache.
        cpu_kv_cache_gib: KV cache on a machine without GPU, GiB.
        enforce_eager: no CUDA graphs.
        tensor_parallel_size: ranks that share an engine.
    """

    def __init__(
        self,
        model: str,
        dtype: Literal["float32", "bfloat16"],
        max_model_len: int,
        gpu_memory_utilization: float = 0.4,
        cpu_kv_cache_gib: int = 1,
        enforce_eager: bool = True,
        tensor_parallel_size: int = 1,
    ):
        self.model, self.dtype, self.max_model_len = model, dtype, max_model_len
        self.gpu_memory_utilization, self.cpu_kv_cache_gib = gpu_memory_utilization, cpu_kv_cache_gib
        self.enforce_eager, self.tensor_parallel_size = enforce_eager, tensor_parallel_size
        #: the ranks that share this engine
        self.sharing = Ranks()
        self.weight_version: int | None = None
        self.gpu = torch.cuda.is_available()
        self.asleep = False
        self._llm: Any = None

    def start(self) -> None:
        self.weight_version = None
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine lives and dies with this process
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(self.cpu_kv_cache_gib)
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        threads, settings = torch.get_num_threads(), self._among_ranks()
        if self.gpu:
            settings |= {"gpu_memory_utilization": self.gpu_memory_utilization, "enable_sleep_mode": True}
        from vllm import LLM

        with torch.random.fork_rng():  # vLLM seeds the global generators
            self._llm = LLM(
                model=self.model,
                dtype=self.dtype,
                max_model_len=self.max_model_len,
                enforce_eager=self.enforce_eager,
                skip_tokenizer_init=True,
                generation_config="vllm",  # sampling settings are ours, not those of the model's folder
                # Of the distribution that is sampled from, temperature included.
                logprobs_mode="processed_logprobs",
                seed=0,
                **settings,
            )
        torch.set_num_threads(threads)

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

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.weight_version = None
        if self.asleep:
            torch.cuda.empty_cache()  # what the policy's allocator keeps in reserve
            self._llm.wake_up(tags=["weights"])
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        if self.asleep:
            self._llm.wake_up(tags=["kv_cache", "scheduling"])
            self.asleep = False
        if not self.gpu:
            self._llm.apply_model(repack_tied_head)
        self._llm.reset_prefix_cache()
        self.weight_version = version

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: Seeds) -> list[list[Completion]]:
        check_fresh(self)
        if self.sharing.count == 1:
            return self._generate(prompts, sampling, seed)
        shares: list[Any] = self.sharing.objects((prompts, seed))
        seeds = shares[0][1] if isinstance(seed, int) else [one for _, share in shares for one in share]
        groups = self._generate([prompt for share, _ in shares for prompt in share], sampling, seeds)
        first = sum(len(share) for share, _ in shares[: self.sharing.rank])
        return groups[first : first + len(prompts)]

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: Seeds) -> list[list[Completion]]:
        from vllm import SamplingParams

        params = SamplingParams(
            n=sampling.n,
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=list(sampling.end_ids),
            logprobs=0,
            detokenize=False,
        )
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with torch.random.fork_rng():
            if isinstance(seed, int):
                # One generator for the whole call: seeds per request make the sampler loop over its rows.
                torch.manual_seed(seed)
                outputs = self._llm.generate(requests, params, use_tqdm=False)
            else:
                self._llm.reset_prefix_cache()  # what earlier calls left there was rounded in their company
                seeded = [_seeded(params, one) for one in seed]
                outputs = self._llm.generate(requests, seeded, use_tqdm=False)
        return [[_completion(sample) for sample in output.outputs] for output in outputs]

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
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None


def _seeded(params: Any, seed: int) -> Any:
    params = params.clone()
    params.seed = seed  # try j of the request has seed + j
    return params


def _completion(sample: Any) -> Completion:
    ids = list(sample.token_ids)
    logprobs = [step[token].logprob for step, token in zip(sample.logprobs, ids, strict=True)]
    return Completion(ids, logprobs, finished=sample.finish_reason == "stop")


def repack_tied_head(model: Any) -> None:
    """On CPU vLLM packs each linear layer's weights when they are loaded, but a reload forgets the tied head's."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    head, embedding = model.lm_head, model.model.embed_tokens
    if head.weight is embedding.weight:
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
