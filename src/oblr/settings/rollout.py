"""What samples, and what scores."""

from typing import Any, Literal

from oblr.settings.kinds import (
    READABLE,
    TRUST,
    Count,
    Few,
    Natural,
    Part,
    Parts,
    Positive,
    PositiveShare,
    Precision,
    RelativeError,
    Section,
    Seed,
    Temperature,
    Text,
    Words,
    section,
)

ENGINE: dict[str, tuple[Any, str]] = {
    "model": (Text, "folder or hub id whose architecture and tokenizer are served"),
    "dtype": (Precision, "precision that the engine computes in"),
}
VLLM: dict[str, tuple[Any, str]] = ENGINE | {
    "max_model_len": (Count | None, "longest prompt plus response, tokens"),
    "gpu_memory_utilization": (PositiveShare | None, "share of a GPU's memory; null: by where the server is"),
    "cpu_kv_cache_gib": (Few, "memory for keys and values without a GPU, GiB"),
    "enforce_eager": (bool, "whether to do without CUDA graphs, which saves memory and takes longer"),
    "max_num_batched_tokens": (
        Count | None,
        "tokens in one forward pass; null: vLLM chooses; without GPU at least max_model_len",
    ),
    "max_num_seqs": (Count | None, "responses sampled at once; null: vLLM chooses"),
    "tensor_parallel_size": (Few, "GPUs that share a copy of the policy"),
}
CLASSES: dict[str, Section] = {
    "oblr.rollout.datamodule.RolloutDataModule": section(
        engine=(str, "which of the engines samples"),
        engines=(Parts(Part("oblr.rollout")), "engines by name"),
        train=(Part("oblr.data"), "training problems"),
        held_out=(Part("oblr.data"), "problems that are never trained on"),
        reward=(Part("oblr.rewards"), "what scores a response"),
        reward_pool=(Part("oblr.rewards"), "processes that score"),
        prompts_per_step=(Few, "N, prompts a step over all devices"),
        group_size=(Few, "G, responses to each prompt"),
        temperature=(Temperature, "that responses are sampled at"),
        max_new_tokens=(Count, "longest response, tokens"),
        max_model_len=(Count, "longest prompt plus response, tokens"),
        seed=(Seed, "of the sampling"),
        stop=(Words, "strings before which a response ends, beside its end tokens"),
        sync_timeout=(Positive, "longest that new weights may take to the engine, seconds"),
        restarts=(Natural, "how often an engine that dies in a step is started again"),
    ),
    "oblr.rollout.hf.HFEngine": section(**ENGINE, batch_size=(Count, "responses sampled at once")),
    "oblr.rollout.vllm.VLLMEngine": section(**VLLM),
    "oblr.rollout.server.ServerEngine": section(
        **VLLM,
        log=(str, "file that the server writes to"),
        url=(Text, "http://host:port of a running server; null: the run starts its own"),
        token_file=(Text | None, "file with what a running server and its run know, and nobody else"),
        transfer=(Literal["auto", "http", "nccl"], "how weights get there"),
        piece_mib=(Positive, "weights sent at once by HTTP, MiB"),
        start_timeout=(Positive, "longest that the server may take to start, seconds"),
        silence_timeout=(Positive, "longest that it may sample nothing, or not answer, seconds"),
        gpus=(Natural | Text, "GPUs of the run's own server, as 6,7; null: the trainer's"),
    ),
    "oblr.rewards.pool.RewardPool": section(
        reward=(Part("oblr.rewards"), "what scores a response"),
        workers=(Few | None, "processes, at most; null: as many as a rank has cores, and at most 32"),
        timeout=(Positive, "for one response, which then gets 0, seconds"),
        memory_gib=(Positive, "of a worker beyond what the reward needs, GiB"),
        readable=READABLE,
        trust=TRUST,
    ),
}
FORMAT = (Part("oblr.rewards"), "what of a response is its answer")
END = (bool, "whether a response that never ends is wrong")
CLASSES |= {
    **{
        f"oblr.rewards.{name}": section(format=FORMAT)
        for name in (
            *("answer.ExactReward", "multiple_choice.MultipleChoiceReward"),
            *("reasoning_gym.ReasoningGymReward", "working.WorkingReward"),
        )
    },
    "oblr.rewards.math.MathReward": section(
        format=FORMAT,
        rounding=(RelativeError, "of a decimal that stands for a number which no decimal is"),
        tolerance=(RelativeError, "of any other number; 0: exactly equal"),
        percent=(Literal["either", "share"], "whether 8 % is 8 or 0.08, or 0.08 alone"),
    ),
    "oblr.rewards.answer.AnswerFormat": section(
        marker=(str, "the answer is what follows the last of these"), require_end=END
    ),
    "oblr.rewards.answer.BoxedFormat": section(require_end=END),
}
