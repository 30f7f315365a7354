"""What recipes keep of a run's cost and of its choice."""

from __future__ import annotations

import json

import pytest
from common.runs import plan_facts
from small_task import data, make_trainer  # noqa: F401

from hf_curriculum import IID, OnlineSelection
from hf_curriculum.reporting.chosen import chosen_of


@pytest.mark.parametrize("rule", [IID(epochs=2), OnlineSelection(3, "loss", easy="low")], ids=lambda rule: rule.type)
def test_what_is_kept(make_trainer, rule):  # noqa: F811
    trainer = make_trainer(rule)
    trainer.train()
    facts = json.loads(json.dumps(plan_facts(trainer)))
    plan = trainer.plan
    assert facts["examples"] == plan.num_examples == trainer.state.log_history[-1]["examples"]
    assert facts["examples_scored"] == (plan.num_draws if plan.candidates > 1 else 0)
    assert facts["compute"] == 3 * facts["examples"] + facts["examples_scored"]
    assert ("chosen" in facts) == (plan.candidates > 1)
    if "chosen" in facts:
        assert facts["chosen"]["never"] == chosen_of(plan, trainer.args.output_dir).never
