"""vLLM in this process. The only module that imports vllm; written for vLLM 0.24 to 0.32."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from oblr.rollout.engine import check_fresh
from oblr.types import Completion, Sampling


class VLLMEngine:
    """vLLM with weights that are replaced in place.

    It shares the GPU with the policy: asleep (vLLM's level 2) it keeps neither weights nor KV cache, and a sync wakes
    it up. Since it lives in the policy's process, the weights come to it one by one as they are. There is no such thing
    as sleep on a machine without GPU.

    Args:
        model: path or hub id of the model.
        dtype: "float32" or "bfloat16".
        max_model_len: longest prompt plus response, tokens.
        gpu_memory_utilization: share of the GPU for weights and KV cache.
        cpu_kv_cache_gib: KV cache on a machine without GPU, GiB.
        enforce_eager: no CUDA graphs.
    """

    def __init__(
        self,
        model: str,
        dtype: Literal["float32", "bfloat16"],
        max_model_len: int,
        gpu_memory_utilization: float = 0.4,
        cpu_kv_cache_gib: int = 1,
        enforce_eager: bool = True,
    ):
        self.model, self.dtype, self.max_model_len = model, dtype, max_model_len
        self.gpu_memory_utilization, self.cpu_kv_cache_gib = gpu_memory_utilization, cpu_kv_cache_gib
        self.enforce_eager = enforce_eager
        self.weight_version: int | None = None
        self.gpu = torch.cuda.is_available()
        self.asleep = False
        self._llm: Any = None

    def start(self) -> None:
        self.weight_version = None
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine lives and dies with this process
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(self.cpu_kv_cache_gib)
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        threads = torch.get_num_threads()
        from vllm import LLM

        gpu: Any = {"gpu_memory_utilization": self.gpu_memory_utilization, "enable_sleep_mode": True}
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
                **(gpu if self.gpu else {}),
            )
        torch.set_num_threads(threads)

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

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int) -> list[list[Completion]]:
        check_fresh(self)
        from vllm import SamplingParams

        params = SamplingParams(
            n=sampling.n,
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=list(sampling.end_ids),
            logprobs=0,
            detokenize=False,
        )
        # One generator for the whole call: seeds per request would make the sampler loop over its rows.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
            outputs = self._llm.generate(requests, params, use_tqdm=False)
        return [[_completion(sample) for sample in output.outputs] for output in outputs]

    def sleep(self) -> None:
        if self.gpu and not self.asleep:
            self.weight_version, self.asleep = None, True
            self._llm.sleep(level=2)

    def close(self) -> None:
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None


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
