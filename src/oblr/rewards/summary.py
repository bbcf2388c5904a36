"""Summaries, by the words that they share with reference summaries."""

from typing import Literal

from rouge_score.rouge_scorer import RougeScorer

from oblr.kinds import NonNegative, checked
from oblr.problem import Completion, Problem


@checked("reward")
class SummaryReward:
    """``R = max_r [F1(o, r) − λ · max(0, |o| / |r| − 1)]`` over references ``r``, with ``|·|`` counted in words.

    F1 is ROUGE's (Lin 2004, by Google's ``rouge-score``, words stemmed). References are ``metadata["references"]`` of
    the problem where it has them, else its answer. A summary that the token limit cut gets 0.

    Args:
        kind: which F-measure: of words, of pairs of words, or of the longest common subsequence.
        length_penalty: λ, reward per reference length beyond the reference's; 0 leaves length to ROUGE itself.
    """

    def __init__(self, kind: Literal["rouge1", "rouge2", "rougeL"] = "rougeL", length_penalty: NonNegative = 0.0):
        self.kind, self.length_penalty = kind, length_penalty
        self.scorer = RougeScorer([kind], use_stemmer=True)

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        if not completion.finished:
            return 0.0
        references = problem.metadata.get("references") or [problem.answer]
        return max(self._score(text, reference) for reference in references)

    def _score(self, text: str, reference: str) -> float:
        excess = max(0.0, len(text.split()) / max(len(reference.split()), 1) - 1)
        return self.scorer.score(reference, text)[self.kind].fmeasure - self.length_penalty * excess
