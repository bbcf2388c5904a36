"""One spelling for answers that are the same, as far as their structure shows it; majority votes count it."""

from oblr.answers.expressions import written
from oblr.answers.structure import Answer, Choice, Group, Joined, Matrix, Named, Quantity, Relation, Rounded, Several


def spelling(answer: Answer) -> str:
    if isinstance(answer, Quantity):
        number = written(answer.expression)
        return answer.text if number is None else f"{number.value}{'%' if answer.percent else ''}"
    if isinstance(answer, Several):
        return ", ".join(sorted({*map(spelling, answer.items)} if answer.braces else map(spelling, answer.items)))
    if isinstance(answer, Group):
        return answer.brackets[0] + ", ".join(map(spelling, answer.items)) + answer.brackets[1]
    if isinstance(answer, Joined):
        return " ∪ ".join(sorted(map(spelling, answer.parts)))
    if isinstance(answer, Matrix):
        return "; ".join(", ".join(map(spelling, row)) for row in answer.rows)
    if isinstance(answer, Named):
        return spelling(answer.value)
    if isinstance(answer, Rounded):
        return spelling(answer.exact)
    if isinstance(answer, Relation):
        return f"{answer.left} {answer.op} {answer.right}"
    return f"({answer.text})" if isinstance(answer, Choice) else answer.text
