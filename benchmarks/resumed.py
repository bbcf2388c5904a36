"""A run that goes on with something changed: it follows and says so, or is refused in one line.

    python benchmarks/resumed.py [--quick]

Two runs of three steps are taken back to their second checkpoint: one whose parts all remember something
(``prior=history``, ``noise_linear``, AdamW, a KL penalty), one whose parts remember nothing but the weights. Then
each goes on to its end, by ``ckpt_path=last`` and one change more, typed as a user would. A change has to be
followed, with status 0 and a line that names it, or refused, with status 2, one line, and the run folder as it was.
With nothing typed the run has to end with the parameters of the one that was never interrupted, bit for bit."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures import ROOT, Figure, asked_to_be_quick, at_most, write
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
import warm

SMALL = (
    *("experiment=pocket", "rollout.engine=hf", "rollout.prompts_per_step=4", "rollout.group_size=4", "steps=3"),
    *("rollout.max_new_tokens=16", "data.held_out.size=4", "callbacks.checkpoints.every=1"),
    *("callbacks.checkpoints.keep=3", "~callbacks.summary", "~callbacks.evaluation"),
)
RUNS = {
    "remembers": ("baseline.prior=history", "schedule=noise_linear", "optimizer=adamw", "eta0=1e-3", "kl=k1"),
    "forgets": ("baseline=rloo", "schedule=constant", "optimizer=sgd", "eta0=1e-2"),
}
#: Run → what is typed besides ``ckpt_path=last``. {models}: the repository's, {copy}: the policy in another folder,
#: {other}: that with another chat template, {data}: a folder with problems.
CHANGES = {
    "remembers": (
        "",
        "baseline=rloo",
        "policy.path={models}/pocket_rare",
        "steps=4",
        "optimizer=sgd",
        "policy.path={other}",
        "policy.adapter=lora",
        "eta0=1e-2 seed=2",
        "schedule=constant",
        "baseline.prior=past",
        "baseline.decay=0.5",
        "schedule=snr",
        "schedule.schedule.level_steps=3",
        "optimizer.weight_decay=0.1",
        "+optimizer.amsgrad=true",
        "loss=ppo_clip",
        "kl=none",
        "kl=k3",
        "kl.coefficient=1e-2",
        "gradnorm=length",
        "gradnorm=sketch gradnorm.probes=4",
        "data.train.params.max_terms=4",
        "data.train.task=products",
        "data=local data.path={data}/problems.jsonl data.held_out_path={data}/problems.jsonl reward=math",
        "data.held_out.size=8",
        "reward=exact",
        "prompt=boxed",
        "'prompt.template=\"{{question}} Think.\"'",
        "policy.path={copy}",
        "policy.dtype=bfloat16",
        "policy.token_budget=512",
        "policy.updates_per_batch=2",
        "trainer.precision=bf16-mixed policy.logprob_gap_mean=1 policy.logprob_gap_p99=9",
        "trainer=fsdp trainer.devices=2 trainer.accelerator=cpu",
        "trainer=ddp trainer.devices=2 trainer.accelerator=cpu",
        "rollout.engine=vllm",
        "rollout.group_size=8",
        "rollout.temperature=0.9",
        "rollout.max_new_tokens=24",
        "callbacks=benchmarks benchmarks=[chain_sum] callbacks.benchmarks.limit=2",
        "callbacks.second_moments.baselines.prior_past.pseudo_counts=[1.0,2.0,3.0,4.0]",
        "callbacks.monitors.entropy.bound=0.2",
        "~callbacks.monitors ~callbacks.samples",
        "logger=csv",
        "experiment=paper_pocket",
        "experiment=pocket",
        "name=other",
    ),
    "forgets": (
        "",
        "baseline=gradient_weighted",
        "baseline.prior=history baseline=gradient_weighted",
        "baseline=rloo",
        "schedule=linear",
        "schedule=snr",
        "schedule.lr=1e-3",
        "kl=k1",
        "kl=k1 policy.path={models}/pocket_rare",
        "optimizer=adamw",
        "+optimizer.momentum=0.9",
    ),
}
#: How many of each run's changes the short form tries.
QUICK = {"remembers": 7, "forgets": 0}


def train(*overrides: str) -> tuple[int, str, str]:
    done = warm.run(["src/train.py", *overrides], ROOT, os.environ | {"PYTHONWARNINGS": "ignore"}, timeout=600)
    return done.returncode, done.stdout, done.stderr


def state(folder: Path) -> dict[str, bytes]:
    """Every file of a checkpoint or a run folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def taken_back(whole: Path, folder: Path) -> Path:
    """A copy of a run as it was after its second step."""
    left_out = shutil.ignore_patterns("step-00003.ckpt", "finished.json", "policy", "report.*")
    return Path(shutil.copytree(whole, folder, ignore=left_out))


def go_on(folder: Path, change: str) -> tuple[str, bool]:
    """What a change leads to, in words, and whether that is right."""
    before = state(folder)
    status, out, err = train(f"paths.output_dir={folder}", "ckpt_path=last", *shlex.split(change))
    said = [line.removeprefix("changed").strip() for line in out.splitlines() if line.startswith("changed ")]
    lines = err.strip().splitlines()
    if status == 2 and len(lines) == 1 and lines[0].startswith("error: "):
        kept = state(folder) == before
        return "refused: " + lines[0].removeprefix("error: ").replace(str(folder), "RUN"), kept
    if status == 0 and not lines:
        nothing = not change or change in ("baseline=rloo", "experiment=pocket")
        return "followed, said: " + ("; ".join(said) or "nothing"), bool(said) != nothing
    return f"status {status}: {lines[-1] if lines else ''}", False


def prepare(folder: Path) -> dict[str, Path]:
    """What changes refer to."""
    models = Path("models")  # below the working directory: a clone may lie where an override may not point
    copy, other = (Path(shutil.copytree(ROOT / models / "pocket", folder / name)) for name in ("copy", "other"))
    (other / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    rows = "".join(f'{{"problem": "{i} + {i} =", "answer": "{2 * i}"}}\n' for i in range(8))
    (folder / "problems.jsonl").write_text(rows)
    return {"models": models, "copy": copy, "other": other, "data": folder}


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    table = Table("run", "typed besides ckpt_path=last", "outcome", "right", show_lines=True)
    found: list[dict[str, str | bool]] = []
    differing = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        places = prepare(folder)
        for name, settings in RUNS.items():
            typed: Sequence[str] = CHANGES[name][: QUICK[name]] if quick else CHANGES[name]
            if not typed:
                continue
            whole = folder / name
            status, _, err = train(*SMALL, *settings, f"paths.output_dir={whole}")
            assert status == 0, err
            for number, change in enumerate(typed):
                run = taken_back(whole, folder / f"{name}-{number}")
                outcome, right = go_on(run, change.format(**places))
                outcome = outcome.replace(scratch, "…").replace(str(ROOT), "…")
                found.append({"run": name, "typed": change, "outcome": outcome, "right": right})
                table.add_row(name, change or "nothing", outcome, "yes" if right else "NO")
                if not change:
                    expected, ended = (state(one / "policy") for one in (whole, run))
                    differing += sum(ended.get(file) != content for file, content in expected.items())
                shutil.rmtree(run)
    Console(width=160).print(table)
    figures = [
        Figure("changes tried", len(found), ""),
        Figure("followed, and said so", sum(str(one["outcome"]).startswith("followed") for one in found), ""),
        Figure("refused in one line", sum(str(one["outcome"]).startswith("refused") for one in found), ""),
        at_most("anything else", sum(not one["right"] for one in found), "", 0),
        at_most("files of the policy that differ from the uninterrupted run's, nothing typed", differing, "", 0),
    ]
    write("resumed-quick" if quick else "resumed", figures, changes=found)


if __name__ == "__main__":
    main()
