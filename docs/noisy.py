# %% [markdown]
# # Why is my GRPO run noisy?
#
# The `grad_norm` jumps, and the reward hardly rises. This may be a fault, a wrong rate, too few prompts or too few
# responses. The curves look alike; what each response has in the gradient does not.
#
# This page trains a tiny Qwen3 three times with TRL's `GRPOTrainer`: with a fault, without it, and with one line
# changed. It takes minutes on two CPU cores, and no hub. The policy is the [pocket policy](index.md#what-you-will-see).
#
# The page is a notebook, [noisy.py](noisy.py). VS Code opens it as it is, Jupyter with jupytext, and Python runs it.
# Start it in a clone, where `models/pocket` is. What was measured is printed by the cells; the text has no measured
# number.

# %%
import itertools
import math
import os
import random
import re
from pathlib import Path
from statistics import fmean, stdev

import matplotlib.pyplot as plt
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.opo import OPOBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.doctor.command import said
from oblr.doctor.diagnosis import diagnose
from oblr.doctor.findings import by_group
from oblr.doctor.measures import Interval, mean, ratio
from oblr.doctor.reading import read
from oblr.doctor.tuning import signal_share, split_noise
from oblr.schedules.snr import SNREstimates
from oblr.statistics.baselines import second_moments
from oblr.statistics.trl import watch

STEPS = int(os.environ.get("NOISY_STEPS", "32"))  # of each of the two long runs

# %% [markdown]
# ## The run
#
# The task is to add up. A response is right if it ends with `Answer:` and the sum.


# %%
def sums(count, seed):
    rng, rows = random.Random(seed), []
    for _ in range(count):
        terms = [rng.randint(0, 9), *(rng.choice((1, -1)) * rng.randint(0, 9) for _ in range(rng.randint(2, 4)))]
        rest = "".join(f" {'-' if term < 0 else '+'} {abs(term)}" for term in terms[1:])
        rows.append({"prompt": f"{terms[0]}{rest} =\n", "answer": str(sum(terms))})
    return Dataset.from_list(rows)


def right(completions, answer, **_):
    return [float(text.rpartition("Answer:")[2].strip() == one) for text, one in zip(completions, answer, strict=True)]


# %% [markdown]
# The trainer is set up as anywhere, with 4 prompts a step and 16 responses to each. `watch(trainer, file)` is new: it
# writes a line for each update, and changes nothing in the run.
#
# `scale_rewards="none"` leaves out GRPO's division by the standard deviation. So an advantage is a reward less the mean
# of its group.


# %%
def run(name, reward, steps, **changed):
    settings = {
        **{"per_device_train_batch_size": 64, "num_generations": 16, "max_completion_length": 40, "max_steps": steps},
        **{"learning_rate": 2e-4, "scale_rewards": "none", "seed": 1, "bf16": False, "use_cpu": True},
        **{"report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True},
    }
    folder = Path("runs/noisy") / name
    trainer = GRPOTrainer(
        model="models/pocket",
        reward_funcs=reward,
        args=GRPOConfig(str(folder), **settings | changed),
        train_dataset=sums(4000, seed=1),
    )
    trainer.remove_callback(PrinterCallback)  # which prints each step's numbers
    file = folder / "statistics.jsonl"
    file.unlink(missing_ok=True)  # lines are added to a file that is there
    watch(trainer, file)
    trainer.train()
    return trainer, file


# %% [markdown]
# ## A jump
#
# The first run has a fault: in its ninth step one wrong response is given 100.

# %%
calls, planted = itertools.count(1), {}


def faulty(prompts, completions, answer, **_):
    rewards = right(completions, answer)
    if next(calls) == 9:
        place = rewards.index(0.0)
        rewards[place] = 100.0
        planted.update(prompt=prompts[place], text=completions[place])
    return rewards


trainer, file = run("faulty", faulty, 10)
records = read(file)
logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
_, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
axes.plot(range(1, 11), logged, "o-")
axes.set(xlabel="step", ylabel="grad_norm, as TRL logs it")
off = max(abs(step.gradient_square**0.5 / norm - 1) for step, norm in zip(records, logged, strict=True))
print(f"‖ĝ‖ of the file and TRL's grad_norm differ by a share of {off:.0e} at most")

# %% [markdown]
# The curve tells no more. The doctor reads the file, and names the response. In a terminal,
# `oblr-doctor runs/noisy/faulty` does the same.

# %%
print(*said(file), sep="\n")

# %% [markdown]
# It knows because the file has each response's part in the gradient. These are the five largest parts of that step.
# `nᵢ` is the squared norm of `∇ log π(oᵢ)`: how far the response moves the policy for each unit of advantage. The rest
# of its group has suffered too: 100 has lifted the mean that they are compared with, and now even right answers count
# as bad.

# %%
finding = diagnose(records)[0]
jump = next(step for step in records if step.step == finding.step)
lengths = math.fsum(one.gradient_square**0.5 for one in jump.responses)
print("  part  reward  advantage     nᵢ  response")
for one in sorted(jump.responses, key=lambda one: -one.gradient_square)[:5]:
    numbers = (
        f"{one.gradient_square**0.5 / lengths:6.1%} {one.reward:7g} {one.advantage:10.2f} {one.square_norm or 0:6.0f}"
    )
    print(f"{numbers}  {' '.join(one.text.split())}")
print(f"clipping left {jump.clipped:.1%} of the step's length")

# %% [markdown]
# GRPO's division would have shown less of it in the curve, and healed nothing. With it this response has the advantage
# that any single right response among 16 has:

# %%
given = [one.reward for one in jump.responses if one.group == jump.responses[finding.response].group]
single = [1.0] + [0.0] * (len(given) - 1)
for name, rewards in (("reward 100", given), ("single right response", single)):
    print(f"{name:22} {(max(rewards) - fmean(rewards)) / stdev(rewards):.2f}")

# %% [markdown]
# So rewards are bounded first. While a run is ill the doctor gives no advice on tuning: what is measured of a broken
# step says nothing of a whole one.
#
# ## Signal and noise
#
# The same run without the fault, and longer.

# %%
_, before = run("before", right, STEPS)
records = read(before)
print(*said(before), sep="\n")

# %% [markdown]
# What it says here is looked into below. Each line of the file is an update; this is the last one.

# %%
last = records[-1]
print(f"‖ĝ‖²         {last.gradient_square:<8.3g} squared length of the gradient, before clipping")
print(f"tr H         {last.noise:<8.3g} noise of one prompt's gradient")
print(f"  within     {last.noise_within:<8.3g} of it from which responses were sampled")
print(f"  between    {last.noise_between:<8.3g} of it from which prompt it is")
print(f"SNR          {last.moments.snr_plug_in:<8.3g} ‖ĝ‖² / tr H")

# %% [markdown]
# `‖ĝ‖² / tr H` flatters: noise alone makes it about 1/N of N prompts, the dotted line. The debiased SNR takes that off.
# It jumps from step to step, so it is drawn of moments that are averaged over steps.

# %%
estimates = SNREstimates(decay=0.8)
snr = [estimates.update(step.moments) for step in records]
at = [step.step for step in records]
_, (above, middle, below) = plt.subplots(3, 1, figsize=(8, 6), sharex=True, layout="constrained")
above.plot(at, [fmean(one.reward for one in step.responses) for step in records])
above.set(ylabel="mean reward", ylim=(0, 1))
middle.plot(at, [of["plug_in"] for of in snr], label="of the step, as it is")
middle.plot(at, [of["ema"] for of in snr], label="debiased, averaged")
middle.axhline(1 / len(last.group_squares), color="gray", linestyle=":", label="noise alone")
middle.set(ylabel="SNR")
middle.legend()
lower = [step.noise_within for step in records]
below.bar(at, lower, label="within prompts")
below.bar(at, [max(step.noise_between, 0.0) for step in records], bottom=lower, label="between prompts")
below.set(xlabel="step", ylabel="tr H")
below.legend(loc="upper left")

alike = ratio([step.noise for step in records], [step.signal for step in records])
print(f"{signal_share(records)} of what the steps move is signal")
print(f"noise scale: {alike} prompts, of which a step would be half signal")

# %% [markdown]
# In brackets are intervals of 95 %, over steps if nothing else is said.
#
# ## Where the noise comes from
#
# **Prompts or responses?** `tr H` has two parts. More responses to a prompt lessen the one within prompts, and only
# more prompts lessen the other. So the split foretells the noise of a step with other groups, at as many responses.

# %%
whole, within = split_noise(records)
print(f"within prompts: {ratio(within, whole)} of tr H")


def foretold(size, now=16):
    """Noise of a step with groups of ``size``, over that with groups of ``now``."""
    after = [(w - s + s * now / size) * size / now for w, s in zip(whole, within, strict=True)]
    return ratio(after, whole)


for size in (4, 8, 16, 32):
    print(f"{64 // size:2} prompts × {size:2} responses: {foretold(size)} of the noise")

# %% [markdown]
# It does not know that the mean of few rewards is a poor baseline, nor that the rewards of a small group are often
# equal and teach nothing. So the doctor never advises fewer than 8 responses.
#
# **Which responses?** `nᵢ` of right and of wrong ones, as the run goes on. It is known where the advantage is not 0.

# %%
quarter = max(len(records) // 4, 1)
for when, some in (("first", records[:quarter]), ("last", records[-quarter:])):
    for kind, reward in (("right", 1.0), ("wrong", 0.0)):
        norms = [one.square_norm for step in some for one in step.responses if one.reward == reward and one.square_norm]
        of = mean(norms)
        print(f"{when:5} quarter, {len(norms):3} {kind} responses: nᵢ {of.value:5.0f} ± {of.high - of.value:.0f}")

# %% [markdown]
# **Which baseline?** Within prompts, a response adds `(Rᵢ − bᵢ)² nᵢ` to the noise, but for a constant. The mean of that
# is computed for other baselines `b` from the same file, without another run. GRPO's group mean is not listed: its
# advantages are RLOO's times 1 − 1/G, so its steps are shorter and no clearer.

# %%
baselines = {"RLOO": RLOOBaseline(), "length": OPOBaseline(), "nᵢ": GradientWeightedBaseline()}
moments = [second_moments(step, baselines) for step in records]
for name in ("length", "nᵢ"):
    left = ratio([of[name] for of in moments], [of["RLOO"] for of in moments])
    print(f"mean of the others, weighted by {name:6}: {left} of what RLOO leaves")

# %% [markdown]
# TRL has no baseline that is weighted by `nᵢ`; [this program](baselines.md) has. Less noise is not yet more reward:
# [findings](findings.md) compare baselines over seeds.
#
# ## Change one line
#
# Of the doctor's advice on this run, the first that is a number of TRL's configuration is taken as it stands. If there
# is none, groups of 8 are tried.

# %%
setting = r"(num_generations|learning_rate|max_grad_norm)=([\d.e-]+)"
advice = [found.groups() for one in diagnose(records) if (found := re.fullmatch(setting, one.trl))]
name, value = advice[0] if advice else ("num_generations", "8")
change = {name: int(value) if name == "num_generations" else float(value)}
print(change, "by the doctor's advice" if advice else "without advice")
_, after = run("after", right, STEPS, **change)

# %% [markdown]
# First what was foretold: the noise of a step, after the change over before. Then the reward, with intervals over
# prompts.


# %%
def quotient(a, b):
    """Of two independent means."""
    error = a.value / b.value * math.hypot((a.high - a.value) / a.value, (b.high - b.value) / b.value)
    return Interval(a.value / b.value, a.value / b.value - error, a.value / b.value + error)


runs = {"before": records, "after": read(after)}
of_step = {name: mean([step.noise / len(step.group_squares) for step in steps]) for name, steps in runs.items()}
measured, expected = quotient(of_step["after"], of_step["before"]), foretold(change.get("num_generations", 16))
agree = measured.low <= expected.high and expected.low <= measured.high
print(f"noise: foretold {expected}, measured {measured}; they {'agree' if agree else 'do not agree'}")
late = {}
for name, steps in runs.items():
    late[name] = mean([fmean(one.reward for one in of) for step in steps[-quarter:] for of in by_group(step)])
    print(f"{name:6} reward over the last quarter {late[name]}, share of signal {signal_share(steps)}")
apart = late["after"].low > late["before"].high or late["before"].low > late["after"].high
print("these rewards are", "apart" if apart else "a tie", "of one seed each")
_, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
for name, steps in runs.items():
    axes.plot(
        [step.step for step in steps], [fmean(one.reward for one in step.responses) for step in steps], label=name
    )
axes.set(xlabel="step", ylabel="mean reward", ylim=(0, 1))
axes.legend()

# %% [markdown]
# The two runs differ in more than their noise: they draw other responses, and move another way. So one pair of runs
# tests what was foretold of the noise, and tells little of the reward. That takes seeds. The doctor is asked again:

# %%
print(*said(after), sep="\n")

# %% [markdown]
# ## In your run
#
# | what the file says | what to change in TRL |
# |---|---|
# | one response has the step | what paid it; `max_grad_norm` |
# | most noise is between prompts | fewer `num_generations` at the same batch size, which makes more prompts |
# | most noise is within prompts | the batch size, or the baseline: other groups at the same batch size hardly help |
# | little of `‖ĝ‖²` is signal | more `gradient_accumulation_steps`, or a smaller `learning_rate` |
#
# [In TRL](trl.md) says what `watch` can measure, [in your own loop](statistics.md#what-it-says) what all the numbers
# are, and [what ails a run](doctor.md#what-it-looks-for) what the doctor looks for.
