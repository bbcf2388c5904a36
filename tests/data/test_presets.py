"""Every preset, on a folder that holds rows of our own under the Hub's ids and in the Hub's columns."""

import json

import datasets
import pytest
from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from oblr.commands.compose import register_resolvers

SHARED = "A farmer has twelve hens and each of them lays two eggs every single day"
#: id → configuration, and of each split its rows, of which ``?`` is the number
HUB = {
    "openai/gsm8k": (
        "main",
        {split: {"question": f"{split} ?", "answer": "so\n#### ?"} for split in ("train", "test")},
    ),
    "nlile/hendrycks-MATH-benchmark": (
        "default",
        {
            split: {"problem": f"{split} ?", "solution": "", "answer": "\\frac{?}{2}", "unique_id": "u?"}
            for split in ("train", "test")
        },
    ),
    "HuggingFaceH4/MATH-500": ("default", {"test": {"problem": "held ?", "answer": "?", "unique_id": "u?"}}),
    "math-ai/amc23": ("default", {"test": {"id": "?", "question": f"{SHARED} amc ?", "answer": "?.0"}}),
    "Hothan/OlympiadBench": (
        "OE_TO_maths_en_COMP",
        {"train": {"id": "?", "question": "olympiad ?", "final_answer": ["?", "2"], "is_multiple_answer": True}},
    ),
    "open-r1/DAPO-Math-17k-Processed": ("all", {"train": {"prompt": "dapo ?", "solution": "?", "ability": "MATH"}}),
    "agentica-org/DeepScaleR-Preview-Dataset": (
        "default",
        {"train": {"problem": "scale ?", "answer": "?", "solution": ""}},
    ),
    "trl-lib/tldr": (
        "default",
        {split: {"prompt": f"POST: {split} ?\n\nTL;DR:", "completion": " so ?"} for split in ("train", "test")},
    ),
    "knkarthick/dialogsum": (
        "default",
        {
            split: {"id": f"{split}_?", "dialogue": f"#Person1#: {split} ?", "summary": "so ?", "topic": "t"}
            for split in ("train", "test")
        },
    ),
}


def numbered(row, number):
    return json.loads(json.dumps(row).replace("?", str(number)))


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    for name, (config, splits) in HUB.items():
        folder = root / name
        folder.mkdir(parents=True)
        files = [{"split": split, "path": f"{split}.jsonl"} for split in splits]
        head = json.dumps([{"config_name": config, "data_files": files}])
        (folder / "README.md").write_text(f"---\nconfigs: {head}\n---\n")
        for split, row in splits.items():
            lines = [json.dumps(numbered(row, number)) for number in range(4)]
            (folder / f"{split}.jsonl").write_text("\n".join(lines))
    dapo = root / "open-r1" / "DAPO-Math-17k-Processed" / "train.jsonl"
    rows = [json.loads(line) for line in dapo.read_text().splitlines()]
    rows[1]["prompt"], rows[2]["prompt"] = f"It is said: {SHARED}.", "held 2"
    dapo.write_text("\n".join(map(json.dumps, rows)))
    return root


def loaded(preset, *overrides):
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("train", overrides=[f"data={preset}", *overrides])
    return instantiate(cfg.data, _convert_="all")


#: preset → prompt and answer of its problems, and of those held out
EXPECTED = {
    "gsm8k": ('train ?\nThink step by step, and end with the result as "Answer: number".\n', "?", "test ?", "?"),
    "math": (
        "train ?\nPlease reason step by step, and put your final answer within \\boxed{}.\n",
        "\\frac{?}{2}",
        "test ?",
        "\\frac{?}{2}",
    ),
    "deepscaler": (
        "scale ?\nPlease reason step by step, and put your final answer within \\boxed{}.\n",
        "?",
        "held ?",
        "?",
    ),
    "tldr": ("POST: train ?\n\nTL;DR:", "so ?", "POST: test ?", "so ?"),
    "dialogsum": (
        "#Person1#: train ?\n\nSummarise the dialogue above in one or two sentences.\nSummary:",
        "so ?",
        "#Person1#: test ?",
        "so ?",
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)


@pytest.mark.parametrize("preset", EXPECTED)
def test_presets(hub, preset):
    data = loaded(preset, f"data.root={hub}")
    prompt, answer, question, result = EXPECTED[preset]
    problems = {(p.prompt, p.answer) for p in data["train"]}
    assert problems == {(prompt.replace("?", str(i)), answer.replace("?", str(i))) for i in range(4)}
    for i, problem in enumerate(data["held_out"]):
        assert problem.prompt.startswith(question.replace("?", str(i)))
        assert problem.answer == result.replace("?", str(i))
    assert data["train"].notes == []


def test_dapo_is_trained_on_without_what_benchmarks_contain(hub):
    data = loaded("dapo_math_17k", f"data.root={hub}")
    assert sorted(p.metadata["question"] for p in data["train"]) == ["dapo 0", "dapo 3"]
    assert [p.answer for p in data["held_out"]] == ["0", "1", "2", "3"]
    assert data["train"].notes == [
        "data.train: 2 of 4 problems dropped: sharing 13 words in a row, or all, with problems never to be trained on: "
        "1 with 1 of 4 in held_out, 1 with 4 of 4 in amc23"
    ]


def test_a_mixture_of_presets(hub):
    roots = [f"data.{name}.root={hub}" for name in ("gsm8k", "math")]
    train = loaded("mixture", *roots)["train"]
    first = [train[i].metadata for i in range(40)]
    assert {"unique_id" in row for row in first} == {True, False}
    assert train[0].prompt.endswith("\\boxed{}.\n")


def test_files_instead_of_the_hub_and_what_is_dropped(hub, tmp_path):
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(json.dumps({"id": f"train/{i}", "pass_rate": i / 4}) for i in range(4)))
    data = loaded(
        "gsm8k",
        *(f"data.path={hub}/openai/gsm8k/train.jsonl", f"data.held_out_path={hub}/openai/gsm8k/test.jsonl"),
        *(f"data.difficulty.path={results}", "data.difficulty.low=0.2", "data.difficulty.high=0.6"),
        *("data.held_out.size=2", "data.max_prompt_tokens=100", "prompt=boxed"),
    )
    assert sorted(p.id for p in data["train"]) == ["train/1", "train/2"]
    assert len(data["held_out"]) == 2
    assert len(data["train"].notes) == 2
