"""What `src/train.py` (and each run of `src/sweep.py`), `src/eval.py` and `src/pretrain.py` are told."""

from typing import Annotated, Any, Literal

from oblr.kinds import (
    Count,
    Few,
    Ge,
    Le,
    Natural,
    NonNegative,
    Part,
    Positive,
    PositiveShare,
    Precision,
    Rate,
    Seed,
    Share,
    Text,
    Word,
)
from oblr.settings.declared import declared
from oblr.settings.kinds import Parts, Section, Setting, section


def of(target: str, *names: str) -> Section:
    """Settings of a class of ours, those of these names or all: where it is that they are given to in the end."""
    declarations = declared(target)
    assert declarations is not None, target
    return {name: declarations[name] for name in names or declarations}


CHAT = (Part("oblr.data"), "what becomes of questions")
#: What presets share, and `data.train` and `data.held_out` refer to.
DATA: Section = section(
    path=(str, "training problems: a file, a folder with a copy of a Hub data set, or a Hub id"),
    held_out_path=(str, "the same for problems that are never trained on"),
    **of("oblr.data.table.TableProblems", "name", "split", "columns", "answer_after", "root", "limit_mib"),
    max_prompt_tokens=(Count | None, "longest prompt, tokens; longer ones are dropped; null: they are an error"),
    difficulty=(section(**of("oblr.data.filters.PassRate")), "keep what a model has got right at such a rate"),
    **of("oblr.data.ordered.Ordered", "order"),
    decontaminate_against=(Parts(Part("oblr.data")), "problem sets that training must not have seen"),
    weights=(dict[str, Positive], "how often each preset of a mixture is drawn from, over the others"),
    train=(Part("oblr.data"), "training problems"),
    held_out=(Part("oblr.data"), "problems that are never trained on"),
)
DATA["*"] = Setting(DATA, "a preset of a mixture")
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
    eta0=(Rate, "η₀, the learning rate that schedules lower; of schedule=normalised the length of the first step"),
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
    gradnorm=(Part("oblr.gradnorm"), "how squared gradient norms are found"),
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
    stop=(list[Word], "strings before which a response ends, beside its end tokens"),
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
