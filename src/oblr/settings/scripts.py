"""What `src/train.py` (and each run of `src/sweep.py`), `src/eval.py` and `src/pretrain.py` are told."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from oblr.settings.data import CHOICES, DATA, ROWS
from oblr.settings.kinds import (
    READABLE,
    TRUST,
    Count,
    Few,
    Natural,
    NonNegative,
    Part,
    Parts,
    Positive,
    PositiveShare,
    Precision,
    Rate,
    Section,
    Seed,
    Share,
    Text,
    Words,
    section,
)

CHAT = (Part("oblr.data"), "what becomes of questions")
PATHS = {
    "root": (str, "the checkout; of an installed package the current folder"),
    "models": (str, "folder of models that are made here"),
    "runs": (str, "folder of runs"),
    "output_dir": (str, "the run's own folder"),
}
BENCHMARKS: dict[str, tuple[Any, str]] = {
    "benchmarks": (Parts(Part("oblr.evaluation")), "sets of problems, by name"),
    "benchmarks_dir": (Text, "folder of JSONL files; null: the Hub"),
    "max_new_tokens": (Count | None, "longest response, tokens; null: 2048, or less where the context is full before"),
}
TRAIN: Section = section(
    name=(str, "runs go to runs/<name>/<time>"),
    seed=(Seed, "of problems, sampling and everything else"),
    steps=(Count, "length of the run, RL steps"),
    eta0=(Rate, "η₀, the learning rate that schedules lower"),
    engine_dtype=(Precision, "precision that engines compute in"),
    ckpt_path=(Text, "a checkpoint to resume, last, auto, or null"),
    paths=(section(**PATHS), "folders"),
    requires=(
        section(
            gpus=(Natural, "GPUs that the experiment is written for"),
            gpu_memory_gib=(NonNegative, "memory of each, GiB"),
            made=(dict[str, str], "folders that have to be there, by the commands that make them"),
        ),
        "what the machine must have",
    ),
    planned=(
        section(
            gpu=(Literal["h100", "h200"], "which GPU a plan reckons with"),
            prompt=(Count | None, "length of prompts, tokens; null: the longest"),
            response=(Count | None, "length of responses, tokens; null: the longest"),
            live=(PositiveShare, "share of groups whose rewards differ"),
        ),
        "what plan=true reckons time with",
    ),
    plan=(bool, "whether to print what a run would take, and run nothing"),
    prompt=CHAT,
    data=(DATA, "problems"),
    policy=(Part("oblr.policy"), "the model that is trained, and its step"),
    gradnorm=(Part("oblr.gradnorm"), "how squared score norms are found"),
    baseline=(Part("oblr.baselines"), "what advantages are taken against"),
    loss=(Part("oblr.losses"), "what becomes of importance ratios"),
    kl=(Part("oblr.losses", optional=True), "penalty towards the policy before training"),
    schedule=(Part("oblr.schedules"), "what gives the learning rate"),
    optimizer=(Part(), "a torch.optim class, with `_partial_: true`"),
    rollout=(Part("oblr.rollout"), "what samples and scores"),
    reward=(Part("oblr.rewards"), "what scores a response"),
    trainer=(Part(), "Lightning's"),
    callbacks=(Parts(Part("callbacks")), "observers, by name"),
    logger=(Part(optional=True), "where curves go besides metrics.jsonl"),
    **BENCHMARKS,
)
EVAL: Section = section(
    paths=(section(**PATHS), "folders"),
    prompt=CHAT,
    rollout=(
        section(
            engine=(str, "which of the engines samples"),
            engines=(Parts(Part("oblr.rollout")), "engines by name"),
            max_model_len=(Count | None, "longest prompt plus response, tokens; null: what the benchmarks need"),
        ),
        "what samples",
    ),
    policy=(section(path=(Text, "what engines load")), "the model under evaluation"),
    engine_dtype=(Precision, "precision that engines compute in"),
    reward=(Part("oblr.rewards"), "what scores responses to benchmarks=[local], and what is scored again"),
    model=(
        Text | list[str],
        "a Hugging Face folder, a hub id, or last: the policy that the newest run has exported; or a list of them",
    ),
    by=(Text | list[str], "columns whose values have figures of their own"),
    rescore=(Text, "folder of an evaluation whose responses are scored by `reward`, without a model"),
    dtype=(Precision, "precision of weights and engine"),
    samples=(Few, "responses to each problem"),
    k=(list[Few], "tries of pass@k and maj@k"),
    temperature=(Annotated[float, Ge(0), Le(100)], "that responses are sampled at; 0: greedy"),
    top_p=(PositiveShare, "the likeliest tokens that together have this probability are sampled from"),
    top_k=(Natural, "so many of the likeliest tokens are; 0: all"),
    min_p=(Share, "tokens that have this share of the likeliest one's probability are"),
    stop=(Words, "strings before which a response ends, beside its end tokens"),
    limit=(Count | None, "of each benchmark, the first so many problems; null: all"),
    chunk=(Count, "problems between two writes to the disk"),
    seed=(Seed, "of the sampling"),
    compare=(list[str] | None, "two folders of evaluations to compare"),
    **BENCHMARKS,
)
PRETRAIN: Section = section(
    paths=(section(**PATHS), "folders"),
    prompt=CHAT,
    data=(DATA, "problems"),
    seed=(Seed, "of weights and corpus"),
    pretraining=(Part("oblr.policy"), "the model that is made, and of what"),
    export_to=(str, "folder of the model"),
    trainer=(Part(), "Lightning's"),
)
SCRIPTS: dict[str, Section] = {"train": TRAIN, "eval": EVAL, "pretrain": PRETRAIN}

PROSE = (Literal["leave_out", "keep"], "problems whose answer the reward cannot compare, as prose and proofs")
CLASSES: dict[str, Section] = {
    "oblr.evaluation.attempts.Benchmark": section(
        problems=(Part("oblr.data"), "what is asked"),
        reward=(Part("oblr.rewards"), "what scores a response"),
        max_new_tokens=(Count | None, "longest response, tokens; null: as long as the context and 2048 let it be"),
        prose=PROSE,
        readable=READABLE,
        trust=TRUST,
    ),
    "oblr.evaluation.local.local": section(
        path=(str, "a JSON, CSV or Parquet file, a folder with a copy of a Hub data set, or a Hub id"),
        setting=(str, "what the user calls it"),
        **{name: ROWS[name] for name in ("name", "split", "columns", "answer_after")},
        **CHOICES,
        prompt=(Part("oblr.data"), "what becomes of questions"),
        reward=(Part("oblr.rewards"), "what scores a response"),
        max_new_tokens=(Count | None, "longest response, tokens; null: as long as the context and 2048 let it be"),
        prose=PROSE,
        readable=READABLE,
        trust=TRUST,
    ),
    "oblr.policy.pretraining.PretrainModule": section(
        corpus=(Part("oblr.data"), "texts"),
        tokenizer_examples=(Count, "texts that the tokenizer is made of"),
        vocab_size=(Annotated[int, Ge(258), Le(2**20)], "of the tokenizer: bytes, two special tokens, and merges"),
        architecture=(
            section(
                hidden_size=(Few, "width"),
                intermediate_size=(Few, "width of the MLPs"),
                num_hidden_layers=(Few, "blocks"),
                num_attention_heads=(Few, "heads of queries"),
                num_key_value_heads=(Few, "heads of keys and values"),
                head_dim=(Few, "width of a head"),
                max_position_embeddings=(Few, "context, tokens"),
                tie_word_embeddings=(bool, "whether embedding and head are one matrix"),
                rope_theta=(Positive, "base of the positions' wavelengths"),
            ),
            "fields of Qwen3Config",
        ),
        batch_size=(Few, "texts a step"),
        max_tokens=(Few, "longest text, tokens; longer ones are cut"),
        lr=(Rate, "largest learning rate"),
        steps=(Count, "length of the run, steps"),
    ),
}
