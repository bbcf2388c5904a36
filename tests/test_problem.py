"""Problems whose answer is not to be read, and responses whose tokens nobody has written down."""

import pytest

from oblr.problem import AnswerRead, Completion, Problem, Sealed, UnsavedTokens


def test_all_of_a_sealed_problem_but_its_answer_is_as_ever():
    told = ("a", "1 + 1 =", "2", {"task": "sums"})
    plain, sealed = Problem(*told), Sealed(*told)
    assert (sealed.id, sealed.prompt, sealed.metadata) == (plain.id, plain.prompt, plain.metadata)
    with pytest.raises(AnswerRead):
        sealed.answer  # noqa: B018


def test_tokens_that_are_not_known_have_a_number_and_say_what_to_do():
    tokens = UnsavedTokens(3)
    assert len(tokens) == 3
    with pytest.raises(LookupError, match="sample anew"):
        tokens[0]


@pytest.mark.parametrize(
    ("count", "versions"),
    [(0, ()), (1, ((3, 1),)), (2, ((3, 2),)), (3, ((3, 2), (4, 1))), (5, ((3, 2), (4, 1), (6, 2)))],
)
def test_a_response_that_is_cut_is_of_the_weights_of_what_is_left(count, versions):
    whole = Completion([1, 2, 3, 4, 5], [-1.0, -2.0, -3.0, -4.0, -5.0], False, ((3, 2), (4, 1), (6, 2)))
    cut = whole.ended_after(count)
    assert cut == Completion(whole.token_ids[:count], whole.logprobs[:count], True, versions)
