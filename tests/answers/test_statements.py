"""Which part of a response is its answer: forms that models write, and responses that give none or more than one."""

import re
import time

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from oblr.answers.statements import final_answer
from oblr.problem import Completion, Problem
from oblr.rewards.answer import BoxedFormat, ExactReward
from oblr.rewards.math import MathReward

ENDED = Completion([1], [0.0], True)
REWARD = MathReward(BoxedFormat())
QUESTION = "How many apples are left?"

#: Each says 7, as models say it; ``\\n`` ends a line.
SEVEN = r"""
## Answer\n\nThe number is **7**.
## Answer\n\n**7**
### Final Answer\n\n7
### Final Answer:\n$$7$$
**Final Answer**\n\n\[ 7 \]
**Final Answer:** 7
**Answer:** \(7\)
**Answer**: $7$
**Answer: 7**
**Answer: 7 apples**
Answer: 7 apples
Answer: 7 apples are left.
The answer is $7$, since $3+4=7$.
The answer is $7$, because 3 is prime.
The answer is 7, as claimed.
The answer is **7**.
The answer is **7** because 3 + 4 = 7.
The answer is thus $7$.
The answer is therefore 7.
The answer is: 7
The answer is:\n\n7
The answer is:\n\[7\]
The answer is\n$$7.$$
The final answer is 7. I hope it is correct.
The final answer is $7$. It follows that 8 is not prime.
<answer>7</answer>
<answer> $7$ </answer>
<answer>\n7\n</answer>
<answer>The answer is 7.</answer>
<answer>\boxed{7}</answer>
<think>maybe 6 \boxed{6}</think><answer>7</answer>
<think>hm \boxed{6}</think>\n\nThe answer is 7.
<think>hm</think> Thus \boxed{7}.
<answer>7
\boxed{7} so \boxed{}
\boxed{7}. Put it in \boxed{}: done.
\boxed{}, that is \boxed{7}
\boxed{7}\n\n\boxed{7}
$$\boxed{7}$$\n\nThe answer is $\boxed{7}$.
\boxed{7}. The answer is 7.
\boxed{7}\n\nAnswer: 7 apples
\[ \boxed{7} \]
\[\n\boxed{7}\n\]
\fbox{7}
$\boxed 7$
\boxed {7}
\boxed{ 7 }
\boxed{\text{7}}
\boxed{6}. Wait, that is wrong. It is \boxed{7}.
Thus, the number of apples is **7**.
Therefore, **7** apples are left.
Thus **7 apples** are left.
Thus, there are 7 apples left.
So, $x = 7$.
Therefore $3 + 4 = 7$.
Therefore, \(x = 7\).
Hence 7 is the answer.
So the total is 3 + 4 = 7.
So the total is 3 + 4 = 7 apples.
Therefore, the answer (in apples) is 7.
Therefore, the answer to the problem is 7.
The answer would be 7.
The correct answer is 7.
Our answer is $7$.
#### 7
#### $7$
#### 7 apples
A: 7
We get 7.\nA: 7
Ans: 7
Answer: x = 7
The answer is x = 7.
The answer is $x = 7$, by the lemma.
**7**
The value is **7**.
\textbf{Answer:} 7
\textbf{Final Answer: } $7$
Answer: \boxed{7}
Answer: `7`
```\nAnswer: 7\n```
Answer: "7"
Result: **7**
The result is **7**.
We conclude that **x = 7**.
Thus the answer is **7**. ✓
Thus the answer is **7**.\n\nI hope this helps!
Thus, 7.\n\nLet me know if you have questions.
The answer is 7. Let me know if you need more.
The answer is 7, and we are done.
The answer is 7 (since 3 + 4 = 7).
Final answer: 7 ✓
Final answer: **7** ✅
$$\boxed{7}$$ ✓
\boxed{x=7}
\boxed{3x = 21 \Rightarrow x = 7}
\boxed{\text{So there are } 7 \text{ apples.}}
答案：7
**Final Answer:** The number of apples is 7.
Final Answer: There are 7 apples left.
Final Answer: The final answer is $7$. I hope it is correct.
Final Answer:\nThe final answer is $\boxed{7}$.
"""
#: None says 7 alone.
NOT_SEVEN = r"""
The answer is 6. The answer is 7.
The answer is 7. The answer is 6.
Answer: 6\nAnswer: 7
Answer: 7\nAnswer: 6
#### 6\n#### 7
#### 7\n#### 6
\boxed{6} \boxed{7}
\boxed{7}\n\n\boxed{6}
\boxed{6} or \boxed{7}
either $\boxed{6}$ or perhaps even $\boxed{7}$
\boxed{6}. Alternatively, the answer could be \boxed{7}.
\boxed{7}. Alternatively, the answer could be \boxed{6}.
\boxed{7} or 6
\boxed{7} or maybe $6$.
\boxed{7}. Or 6.
\boxed{7}. The answer is 6.
\boxed{6}. The answer is 7.
\boxed{7}\n\nAnswer: 6
<answer>6</answer><answer>7</answer>
<answer>7</answer><answer>6</answer>
<answer>6 or 7</answer>
<answer>6, 7</answer>
<answer>6\n7</answer>
<answer>7</answer> or <answer>6</answer>
## Answer\n\n**6** or **7**
## Answer\n\n**6**\n\n**7**
## Answer\n\n6\n7
## Answer\n\n- 6\n- 7
## Answer\n\nIt is either 6 or 7.
The answer is 7, or 6.
The answer is 7 or 6.
The answer is either 6 or 7.
The answer is $7$ or $6$, since both work.
The answer is 6, 7, 8.
The answer is 7, unless it is 6.
The answer is 7, but it could be 6.
The answer is not 7.
The answer is 7? No, it is 6.
The answer is $7$, which is wrong.
The answer is between 6 and 7.
Thus, the answer is **not 7**.
Thus, it is not **7**.
Therefore it is 6. Therefore it is 7.
So it is 6 or 7.
Thus there are 6 apples. Thus there are 7 apples.
Thus there are **6** or **7** apples.
Thus there are 7 dozen apples.
Thus there are **7** dozen apples.
Thus there are **7 dozen** apples.
Therefore there are 7 hundred apples.
Therefore there are 7 and a half apples.
Thus there are 7 thirds.
The answer is 7 dozen.
The answer is 7 hundredths.
(A) 6 (B) 7 (C) 8
The answer is (A) 6, (B) 7, (C) 8.
The options are:\n- 6\n- 7
6\n7
7
It is 7.
Thus 7 of 9 apples are left.
So 3 boys have 7 apples.
I cannot decide. Answer: 6 / 7
Maybe **7**.
It might be **7**.
Is it **7**?
The answer is **7**. Wait, no: the answer is **6**.
The answer is 7.\n\nActually, the answer is 6.
\boxed{7}. Wait, that is wrong: \boxed{6}
\boxed{7 \Rightarrow 6}
\boxed{\text{the answer is }6. \text{ the answer is }7.}
\boxed{6. 7}
\boxed{6\n\boxed{7} or 8}
\boxed{7
\boxed{}
\boxed{?}
<think>the answer is 7</think> I do not know.
<think>\boxed{7}</think> \boxed{6}
<answer></answer>
The answer is in $7$ parts.
$$x = 6$$ $$x = 7$$
A: 6\nA: 7
A: 7\nB: 6
The answer is "7" or "6".
**Answer:** 7\n**Answer:** 6
Answer: 7 Answer: 6
Final answer: 6 (or 7)
Final answer: 7 (or 6)
Final answer: 7 (mod 11)
Final Answer: 7/8
The answer is 7 times 8.
The answer is 7^2.
The answer is 7!
The answer is 7 more than 8.
Thus there are 7 more than 8 apples.
Thus $x = 6$ and $x = 7$.
Thus the answers are 6 and 7.
The answer is 7%-8%.
the answer is 6 and the answer is 7
The answer is 6 but the answer is 7
My answers: 6; 7
\boxed{6}, \boxed{7}, \boxed{8}
\boxed{7}, \boxed{7}, \boxed{8}
The answer could be 6. It could also be 7.
The answer is 6. It is also 7.
The answer is 7. It is also 6.
\boxed{7}\nNo wait, 6.
"""


def lines(text):
    """Of the lists above; a line ends where no command begins."""
    return [re.sub(r"\\n(?!eq)", "\n", line) for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("response", lines(SEVEN))
def test_an_answer_is_found_however_it_is_said(response):
    assert REWARD(Problem("p", QUESTION, "7"), response, ENDED) == 1
    assert REWARD(Problem("p", QUESTION, "8"), response, ENDED) == 0


@pytest.mark.parametrize("response", lines(NOT_SEVEN))
def test_what_does_not_say_seven_alone_is_not_paid(response):
    assert REWARD(Problem("p", QUESTION, "7"), response, ENDED) == 0


@pytest.mark.parametrize(
    ("gold", "response"),
    [
        ("16", r"## Answer\n\nCharlie will have to add **16 apples**."),
        ("10812", r"## Final Answer\n\n13,572 − 2,760 = **10,812**"),
        (r"49! \cdot 2^{50}", r"## Final Answer\n\nThe number of arrangements is:\n\n$$49! \cdot 2^{50}$$"),
        (r"\frac{1}{9}", r"Thus, the probability is \(\boxed{\frac{1}{9}}\)."),
        (r"\frac{1}{2}", r"$\boxed{\dfrac12}$\n\n\boxed{\frac{1}{2}}"),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}\n\nThe answer is 0.5."),
        ("1,-2", r"\boxed{1} and \boxed{-2}"),
        ("1,-2", r"The solutions are $x = \boxed{1}$ or $x = \boxed{-2}$."),
        ("85", "\\boxed{Let $a = 44$. Then $b = 41$.\\nSo the least value is \\(\\boxed{85}\\).\\n}"),
        ("11", r"\boxed{\text{Let } x \text{ be the mean. Then } 5x = 55, \text{ so } x = 11.}"),
        ("5", r"\boxed{66 - x = 61 \;\Rightarrow\; x = 5.}\n\n\boxed{5}"),
        ("2", r"Thus, the sum is $1+1=2$."),
        ("72", "So the cost is $72."),
        ("18", "The answer is $18 dollars, since 16 - 7 = 9 eggs are sold."),
        ("Evelyn", "The answer is Evelyn, because she is the oldest."),
        ("B", "The answer is (B)."),
        ("(3,4)", r"The answer is $(3,4)$, since both are roots."),
    ],
)
def test_of_other_kinds(gold, response):
    text = response.replace("\\n", "\n")
    assert REWARD(Problem("p", QUESTION, gold), text, ENDED) == 1


def test_a_named_value_is_the_whole_formula():
    assert final_answer("Therefore, $f(1982) = 660$.") == "f(1982) = 660"


GOLDS = ["7", r"\frac{1}{2}", r"3\sqrt{13}", "0.15", "(3,4]", r"\text{Evelyn}", "x=5", "p - q", "72000", r"90^\circ"]
BOTH = [
    r"\boxed{{{0}}} or \boxed{{{1}}}",
    "\\boxed{{{0}}}\n\n\\boxed{{{1}}}",
    r"\boxed{{{0}}}. Alternatively, it could be \boxed{{{1}}}.",
    r"\boxed{{{0} \text{{ or }} {1}}}",
    "The answer is ${0}$. The answer is ${1}$.",
    "The answer is ${0}$ or ${1}$, since both fit.",
    "Answer: {0}\nAnswer: {1}",
    "#### {0}\n#### {1}",
    "<answer>{0}</answer>\n<answer>{1}</answer>",
    "## Answer\n\n**{0}** or **{1}**",
    "Thus, it is either **{0}** or **{1}**.",
    "Therefore, it is ${0}$ or ${1}$.",
    "Options:\n- {0}\n- {1}",
]


@pytest.mark.parametrize("form", BOTH)
@settings(max_examples=15, deadline=None)
@given(pair=st.lists(st.sampled_from(GOLDS), min_size=2, max_size=2, unique=True))
def test_of_two_answers_neither_is_paid(form, pair):
    for gold in pair:
        assert REWARD(Problem("p", "?", gold), form.format(*pair), ENDED) == 0, form.format(*pair)


@pytest.mark.parametrize("form", [r"\boxed{{{}}}", "Answer: {}", "#### {}", "<answer>{}</answer>", "The answer is {}."])
def test_an_answer_that_is_taken_back_leaves_the_next_one(form):
    text = f"{form.format(6)} Wait, that is wrong: one of them was counted twice, so I count again. {form.format(7)}"
    assert REWARD(Problem("p", "?", "7"), text, ENDED) == 1
    assert REWARD(Problem("p", "?", "6"), text, ENDED) == 0


def test_what_is_exact_is_read_where_it_is_stated_too():
    exact = ExactReward(BoxedFormat())
    assert exact(Problem("p", "?", "blue whale"), "The answer is **blue whale**, since it is the largest.", ENDED) == 1
    assert exact(Problem("p", "?", "7"), r"\boxed{6} or \boxed{7}", ENDED) == 0


PIECES = [
    *(
        "7",
        "6",
        " ",
        "\n",
        "**",
        "$",
        "$$",
        "\\[",
        "\\]",
        "{",
        "}",
        ". ",
        ", ",
        "or ",
        "\\boxed{",
        "<answer>",
        "</answer>",
    ),
    *(
        "Answer: ",
        "the answer is ",
        "## Answer\n\n",
        "Thus ",
        "\\text{",
        "\\Rightarrow ",
        "=",
        "####",
        "is ",
        "</think>",
        "A: ",
    ),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_any_text_is_read_in_time(pieces):
    """In this thread's own time: others may keep the machine busy."""
    start = time.thread_time()
    final_answer("".join(pieces))
    assert time.thread_time() - start < 0.5


@pytest.mark.parametrize("piece", PIECES)
def test_however_often_it_is_repeated(piece):
    start = time.thread_time()
    final_answer(piece * 3000)
    final_answer(f"Thus it is 7{piece * 3000}")
    assert time.thread_time() - start < 1


def test_the_page_says_what_is_found():
    """Each line of the page's list, for a problem whose answer is 7."""
    listed = re.findall(r"^- `(.+)`$", (ROOT / "docs" / "answers.md").read_text(), re.MULTILINE)
    assert len(listed) > 8
    for response in listed:
        assert REWARD(Problem("p", QUESTION, "7"), response.replace("⏎", "\n"), ENDED) == 1, response
