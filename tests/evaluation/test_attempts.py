import random

import pytest
from conftest import POCKET

from oblr.batch.types import Sampling
from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError
from oblr.evaluation.attempts import Benchmark, attempt, check_tries, longest, new_tokens
from oblr.policy.loading import load_tokenizer
from oblr.problem import Completion, Problem
from oblr.rewards.answer import AnswerFormat, BoxedFormat, ExactReward
from oblr.rewards.math import MathReward

TOKENIZER = load_tokenizer(str(POCKET))
BENCHMARK = Benchmark(ReasoningGymProblems("chain_sum", 9, 1), ExactReward(AnswerFormat()), 64)
SAMPLING = Sampling(3, 1.0, 64, (TOKENIZER.eos_token_id,))


def generate(prompts, sampling, seeds):
    """Stands for an engine: its responses depend on prompt and seed as an engine's do (see test_engines.py)."""
    groups = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        drawn = [random.Random(seed + j) for j in range(sampling.n)]
        texts = [f"{TOKENIZER.decode(prompt)[-3:]} Answer: {draw.randrange(4)}" for draw in drawn]
        groups.append(
            [
                Completion(TOKENIZER.encode(text), [], draw.random() < 0.8)
                for text, draw in zip(texts, drawn, strict=True)
            ]
        )
    return groups


def test_neither_order_nor_chunks_nor_the_number_of_tries_matter():
    problems = BENCHMARK.first(None)
    whole = attempt(BENCHMARK, problems, generate, TOKENIZER, SAMPLING, seed=1)
    assert len({tuple(one.responses) for one in whole}) > 5
    assert whole[:4] == attempt(BENCHMARK, BENCHMARK.first(4), generate, TOKENIZER, SAMPLING, seed=1)
    assert whole[::-1] == attempt(BENCHMARK, problems[::-1], generate, TOKENIZER, SAMPLING, seed=1)
    fewer = attempt(BENCHMARK, problems, generate, TOKENIZER, Sampling(2, 1.0, 64, SAMPLING.end_ids), seed=1)
    assert [one.responses for one in fewer] == [one.responses[:2] for one in whole]
    assert whole != attempt(BENCHMARK, problems, generate, TOKENIZER, SAMPLING, seed=2)


def test_responses_are_scored_in_order():
    problems = BENCHMARK.first(None)
    for one, problem in zip(attempt(BENCHMARK, problems, generate, TOKENIZER, SAMPLING, 1), problems, strict=True):
        assert (one.id, one.prompt, one.answer) == (problem.id, problem.prompt, problem.answer)
        given = [
            text.rpartition(" ")[2] if end else None for text, end in zip(one.responses, one.finished, strict=True)
        ]
        assert one.answers == given
        assert one.rewards == [float(answer == problem.answer) for answer in given]
        assert one.lengths == [len(TOKENIZER.encode(text)) for text in one.responses]
        assert one.pass_rate == sum(one.rewards) / 3


def half(problem, text, completion):
    return 0.5


@pytest.mark.wide
def test_a_reward_without_answers_has_no_votes():
    benchmark = Benchmark(BENCHMARK.problems, half, 64)
    attempts = attempt(benchmark, benchmark.first(2), generate, TOKENIZER, SAMPLING, 1)
    benchmark.pool.close()
    assert [(one.answers, one.rewards, one.pass_rate) for one in attempts] == [(None, [0.5] * 3, 0.0)] * 2


def test_what_cannot_be_tried():
    twice = Benchmark([Problem("a", "1", "1"), Problem("a", "2", "2")], BENCHMARK.reward, 64)
    with pytest.raises(SettingError, match=r"^benchmarks: two problems have the id a \(give each its own\)"):
        twice.first(None)
    most = longest("sums", BENCHMARK.first(None), TOKENIZER, 64, 256)
    assert most > 64
    assert longest("sums", BENCHMARK.first(None), TOKENIZER, 64, most) == most
    with pytest.raises(SettingError, match=r"^benchmarks.sums.max_new_tokens: .*chain_sum/\d exceed a context of 70"):
        longest("sums", BENCHMARK.first(None), TOKENIZER, 64, 70)
    check_tries(4, [1, 4])
    for ks in ([5], [0], [1, 5]):
        with pytest.raises(SettingError, match=r"^k: "):
            check_tries(4, ks)


def test_a_response_is_as_long_as_the_context_lets_it_be_where_nobody_says():
    problems = BENCHMARK.first(None)
    unsaid, prompt = (
        Benchmark(BENCHMARK.problems, BENCHMARK.reward, None),
        longest("sums", problems, TOKENIZER, 0, None),
    )
    for context, expected in ((None, 2048), (100_000, 2048), (256, 256 - prompt), (prompt + 1, 1)):
        limit = new_tokens(unsaid, problems, TOKENIZER, context)
        assert limit == expected
        assert longest("sums", problems, TOKENIZER, limit, context) == prompt + limit
    assert new_tokens(BENCHMARK, problems, TOKENIZER, 70) == 64  # what is asked for is refused, and not cut
    with pytest.raises(SettingError, match="exceed a context"):
        longest("sums", problems, TOKENIZER, new_tokens(unsaid, problems, TOKENIZER, prompt), prompt)


PROSE = [
    Problem("number", "1 + 1 =", "2"),
    Problem("prose", "Who wins?", "the first player wins if and only if n is even"),
    Problem("proof", "Prove it.", r"Let $n$ be even; then $n = 2k$, so that $4 \mid n^2$."),
    Problem("name", "Who?", r"\text{Evelyn}"),
    Problem("counted", "How many apples are left?", "7 apples"),
]


def test_prose_and_proofs_are_left_out_and_counted():
    reward = MathReward(BoxedFormat())
    problems, left_out = Benchmark(PROSE, reward, 64).judged(None)
    assert ([one.id for one in problems], left_out) == (["number", "name", "counted"], 2)
    problems, left_out = Benchmark(PROSE, reward, 64).judged(2)
    assert ([one.id for one in problems], left_out) == (["number"], 1)
    assert Benchmark(PROSE, reward, 64, "keep").judged(None) == (PROSE, 0)
    assert Benchmark(PROSE, BENCHMARK.reward, 64).judged(None) == (PROSE, 0)
    with pytest.raises(SettingError, match=r"benchmarks: all 2 answers are prose, as that of prose"):
        Benchmark(PROSE[1:3], reward, 64).first(None)


@pytest.mark.parametrize("between", [[], [TOKENIZER.pad_token_id], [len(TOKENIZER) + 12]])
def test_an_answer_with_a_token_without_text_in_it_scores_nothing(between):
    def engine(prompts, sampling, seeds):
        ids = [*TOKENIZER.encode("Answer: 4"), *between, *TOKENIZER.encode("2"), TOKENIZER.eos_token_id]
        return [[Completion(ids, [0.0] * len(ids), True)] for _ in prompts]

    benchmark = Benchmark([Problem("p", "6 * 7 =", "42")], MathReward(BoxedFormat()), 64)
    (one,) = attempt(benchmark, benchmark.first(None), engine, TOKENIZER, Sampling(1, 1.0, 64, SAMPLING.end_ids), 1)
    benchmark.pool.close()
    assert one.rewards == [0.0 if between else 1.0]
