import torch
from torch import nn

from dpft.privacy.clipping.separation.flow import learn_flow
from dpft.privacy.clipping.separation.proof import Verdict
from dpft.privacy.clipping.separation.region_plans import Level, RegionPlans
from dpft.privacy.clipping.separation.signature import signature_of
from dpft.privacy.clipping.trainable import TrainableParameters


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) * self.scale


def made():
    model = Scaled()
    return model, RegionPlans(model, TrainableParameters(model))


def call(plans, model, x, learned):
    def learn():
        learned.append(x.shape)
        return learn_flow(model, model.forward, ((x,), {}), dict(model.named_parameters()))

    return plans.plan_for(signature_of(model, ((x,), {})), learn)


def test_a_plan_is_learned_once_per_kind_and_anew_where_it_was_ambiguous():
    model, plans = made()
    learned = []
    for shape in ((4, 4, 3), (4, 5, 3), (2, 6, 3), (6, 6, 3)):
        call(plans, model, torch.ones(shape), learned)
    assert learned == [(4, 4, 3), (4, 5, 3)]


def test_a_proof_holds_for_its_calls_and_its_level_alone():
    model, plans = made()
    x = torch.ones(4, 5, 3)
    plans.start()
    assert not plans.saw_a_call and not plans.are_proved(graph=1)
    plan = call(plans, model, x, [])
    assert plans.saw_a_call and not plans.are_proved(graph=1)
    plans.remember_proof(Verdict.WHOLE)
    assert plans.are_proved(graph=1) and plans.are_proved(graph=1)
    assert not plans.are_proved(graph=2)
    assert plan.level is Level.SMALL and plans.widen()
    assert not plans.are_proved(graph=1)


def test_widening_ends_with_the_whole_model_one_example_after_another():
    model, plans = made()
    plans.start()
    plan = call(plans, model, torch.ones(4, 5, 3), [])
    levels = []
    while plans.widen():
        levels.append(plan.level)
    assert levels == [Level.CARRYING, Level.WHOLE, Level.LOOPED]
    assert [region.module for region in plan.regions] == [model] and plan.regions[0].loops


def test_what_was_proved_in_part_holds_for_one_batch_or_until_their_number_doubles():
    model, plans = made()
    plans.start()
    call(plans, model, torch.ones(4, 5, 3), [])
    plans.remember_proof(Verdict.FOR_NOW)
    assert [plans.are_proved(graph=1) for _ in range(2)] == [True, False]
    plans.remember_proof(Verdict.PARTLY)
    proved = [plans.are_proved(graph=1) for _ in range(9)]
    assert proved == [True, False, True, False, True, True, True, False, True]
