"""Where problems come from, how they become prompts, and the rewards that compare with summaries."""

from typing import Any, Literal

from oblr.settings.kinds import (
    Count,
    Natural,
    NonNegative,
    Number,
    Part,
    Parts,
    Positive,
    Section,
    Seed,
    Setting,
    Share,
    Text,
    section,
)

SOURCE = "oblr.data"
COLUMNS = (
    dict[str, Text],
    "which column, or path below one, has the prompt, the answer, the id, and others that a reward reads",
)
SIZE = (Count | None, "the first so many problems; null: all")
SEED = (Seed, "of the order, or of the problems that are made")
PROMPT = (Part(SOURCE, optional=True), "what becomes of a question")
ANSWER_AFTER = (str, "the final answer is what follows the last of these in the column")
ROWS = {
    "name": (Text, "configuration of a Hub data set"),
    "split": (str, "of a Hub data set"),
    "columns": COLUMNS,
    "answer_after": ANSWER_AFTER,
    "root": (Text, "folder with copies of Hub data sets under their ids"),
    "limit_mib": (Count | None, "most memory that reading may take, MiB; null: 512, or 100 times the file's size"),
}
CHOICES = {
    "choices": (list[str], "of multiple choice: the column that lists them, or a column each, the answer's among them"),
    "labels": (Text, "the column that lists what the answer calls them; null: letters"),
}
LOW, HIGH = (Share, "least rate of right answers"), (Share, "largest rate of right answers")

#: What presets share, and `data.train` and `data.held_out` refer to.
DATA: Section = section(
    path=(str, "training problems: a file, a folder with a copy of a Hub data set, or a Hub id"),
    held_out_path=(str, "the same for problems that are never trained on"),
    **ROWS,
    max_prompt_tokens=(Count | None, "longest prompt, tokens; longer ones are dropped; null: they are an error"),
    difficulty=(
        section(path=(Text, "folder of a run of src/eval.py; null: no choice"), low=LOW, high=HIGH),
        "keep what a model has got right at such a rate",
    ),
    decontaminate_against=(Parts(Part(SOURCE)), "problem sets that training must not have seen"),
    weights=(dict[str, Positive], "how often each preset of a mixture is drawn from, over the others"),
    train=(Part(SOURCE), "training problems"),
    held_out=(Part(SOURCE), "problems that are never trained on"),
)
DATA["*"] = Setting(DATA, "a preset of a mixture")

CLASSES: dict[str, Section] = {
    "oblr.data.filters.Filtered": section(
        source=(Part(SOURCE), "what is filtered"),
        setting=(str, "what the user calls it"),
        filters=(Parts(Part(SOURCE)), "by any name, in order"),
        size=SIZE,
    ),
    "oblr.data.filters.PassRate": section(path=(Text, "folder of a run of src/eval.py; null: all"), low=LOW, high=HIGH),
    "oblr.data.filters.PromptLength": section(
        tokenizer=(str, "whose tokens are counted"), limit=(Count | None, "longest prompt, tokens; null: any")
    ),
    "oblr.data.mixture.Mixture": section(
        sources=(Parts(Part(SOURCE)), "by name"),
        weights=(dict[str, Positive], "how often each is drawn from, over the others"),
        seed=SEED,
    ),
    "oblr.data.overlap.Disjoint": section(
        held_out=(Part(SOURCE), "problems that are left out"), others=(Parts(Part(SOURCE)), "more of them, by name")
    ),
    "oblr.data.pocket_corpus.pocket_corpus": section(
        problems=(Part(SOURCE), "sums"),
        held_out=(Part(SOURCE), "sums that are left out"),
        seed=SEED,
        mixture=(dict[str, Share], "share of each behaviour in the corpus"),
        longest_pause=(Natural, "steps that a worked solution may repeat itself for"),
    ),
    "oblr.data.procedural.ReasoningGymProblems": section(
        task=(str, "of reasoning-gym"),
        size=(Count, "how many there are"),
        seed=SEED,
        template=(str, "what is asked, with the task's own fields in braces"),
        params=(dict[str, Any] | None, "the task's own"),
        prompt=PROMPT,
    ),
    "oblr.data.prompts.PromptFormat": section(
        template=(str, "what is said; {prompt} is the question"),
        chat=(bool, "whether in the chat template of the tokenizer"),
        tokenizer=(Text, "whose chat template"),
        system=(Text, "system message of the chat"),
        examples=(list[list[str]], "[question, response] pairs that come first, as turns or as text"),
        options=(dict[str, Any] | None, "of the chat template"),
    ),
    "oblr.data.published.published": section(
        file=(str, "name in the folder"),
        directory=(Text, "folder of published problems; null: the Hub"),
        hub=(Part(SOURCE), "the Hub's, with `_partial_: true`"),
        prompt=PROMPT,
        optional=(bool, "whether the Hub's are taken where the folder has no such file"),
    ),
    "oblr.data.shuffled.Shuffled": section(source=(Part(SOURCE), "what is shuffled"), seed=SEED),
    "oblr.data.table.TableProblems": section(
        path=(str, "a file, a folder or a Hub id"), **ROWS, **CHOICES, prompt=PROMPT
    ),
    "oblr.rewards.summary.SummaryReward": section(
        kind=(Literal["rouge1", "rouge2", "rougeL"], "which F-measure"),
        length_penalty=(NonNegative, "reward per reference length beyond the reference's"),
    ),
    "oblr.rewards.weighted_sum.WeightedSum": section(
        parts=(
            Parts(section(weight=(Number, "factor"), reward=(Part("oblr.rewards"), "what scores"))),
            "summands by name",
        )
    ),
}
