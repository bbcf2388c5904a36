"""The line and the bar of each step."""

import re
from types import SimpleNamespace

from step_statistics import make_statistics

from callbacks.progress import LiveProgress


def test_a_line_and_the_bar_count_the_steps_that_are_done(capsys):
    shown, done = LiveProgress(every=2), []
    shown.progress, shown.task = SimpleNamespace(update=lambda task, completed: done.append(completed)), 0
    for step in range(3):
        trainer = SimpleNamespace(current_epoch=step, max_epochs=3, callbacks=[])
        shown.on_step(trainer, None, make_statistics(lr=0.5))
    said = capsys.readouterr().out
    assert done == [1, 2, 3]
    assert re.findall(r"step (\d)/3  reward 0\.667 .* η 5\.00e-01", said) == ["1", "2", "3"]
    assert said.count("sample ") == 2
