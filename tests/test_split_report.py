"""What a split reports: shares that are far from equal, the layer to blame, and what is kept whole and why."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn

from freewheel.split import split


class Branches(nn.Module):
    """Cannot be traced."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


class OtherPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if self.training else self.b(x)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(self.a(x).relu())


class Chain(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def linears(*widths):
    return [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]


def run(stages, x):
    for stage in stages:
        x = stage(x)
    return x


def warned(model, k, **options):
    """The one warning of a split."""
    with pytest.warns(UserWarning, match="unbalanced split") as caught:
        stages = split(model, k, by="parameters", **options)
    assert [w.filename for w in caught] == [__file__]
    return stages, str(caught[0].message)


@pytest.mark.parametrize("chain", [nn.Sequential, Chain])
def test_an_unbalanced_split_warns_with_its_shares_and_the_layer_to_blame(chain):
    stages, message = warned(chain(*linears(1, 10, 79, 1, 11)), 3)
    name = stages.report.names[1][0]
    assert stages.report.costs == (10, 790, 90)
    assert "the stages have 1 / 89 / 10 % of the parameters" in message
    assert f"'{name}' has 89% and is a single layer" in message
    assert f"'{name}' has 89% and is a single layer" in str(stages.report)


@pytest.mark.parametrize(("largest", "warns"), [(16, True), (15, False)])
def test_half_more_than_the_mean_is_still_balanced(largest, warns):
    model = nn.Sequential(nn.Linear(largest, 1, bias=False), nn.Linear(1, 20 - largest, bias=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = split(model, 2, by="parameters").report
    assert report.costs == (largest, 20 - largest)
    assert len(caught) == warns
    assert bool(report.bottleneck) == warns


def test_cuts_that_were_asked_for_do_not_warn():
    model = nn.Sequential(*linears(1, 10, 79, 1, 11))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split(model, at=["1"])
        split(model, balance=[1, 3])


def test_the_warning_says_why_the_largest_part_is_kept_whole():
    stages, message = warned(Chain(nn.Linear(2, 8), Branches(8), nn.Linear(8, 2)), 3, example=torch.randn(3, 2))
    assert "'blocks.1' has 77% and is kept whole: its forward cannot be traced" in message
    assert "if x.sum() > 0" in message
    assert "\n" not in message
    assert stages.report.whole[0][0] == "blocks.1"


def test_the_warning_names_calls_that_cannot_be_cut_apart():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            a = self.first(x)
            b = a.view(-1, 4)
            c = self.second(x.repeat(1, 2))
            b.add_(1)
            return self.last(a + b + c)

    _, message = warned(Views(), 2, example=torch.randn(3, 2))
    assert "'first' to 'add_' have 86% and are not cut apart: 'first' and 'view' share memory" in message


def test_what_is_kept_whole_is_reported_with_the_reason():
    hooked = Block(4)
    hooked.register_forward_hook(lambda *args: None)
    model = Chain(Branches(4), OtherPath(), hooked, Block(4), Branches(4))
    report = split(model, 2, by="parameters", example=torch.randn(3, 4)).report
    whole = dict(report.whole)
    assert list(whole) == ["blocks.0", "blocks.4", "blocks.1", "blocks.2"]
    assert whole["blocks.0"] == whole["blocks.4"]
    assert "(test_split_report.py, line " in whole["blocks.0"]
    assert whole["blocks.1"] == "takes another path in training than in evaluation (first at 'a')"
    assert whole["blocks.2"] == "it has hooks"
    lines = [line for line in str(report).splitlines() if line.startswith("kept whole: ")]
    assert [line.split(": ")[1] for line in lines] == ["blocks.0, blocks.4", "blocks.1", "blocks.2"]


def test_what_can_be_cut_is_not_reported_as_whole():
    assert split(Chain(Block(4), Block(4)), 2, by="parameters").report.whole == ()


def test_the_blocks_of_a_sequential_are_opened_where_its_children_do_not_divide_well():
    model = nn.Sequential(nn.Linear(2, 8), Block(8), nn.Linear(8, 2))
    stages = split(model, 2, by="parameters")
    assert ["1.a" in names for names in stages.report.names] == [True, False]
    assert ["1.b" in names for names in stages.report.names] == [False, True]
    assert split(model, 5, by="parameters").report.names[2] == ("1.b",)  # more stages than children
    assert split(model, at=["1.b"]).report.names[1][0] == "1.b"
    x = torch.randn(3, 2)
    assert torch.equal(run(stages, x), model(x))


def test_the_blocks_of_a_sequential_stay_whole_where_its_children_divide_well():
    stages = split(nn.Sequential(Block(4), Block(4), Block(4)), 3, by="parameters")
    assert stages.report.names == (("0",), ("1",), ("2",))
    assert all(type(stage) is nn.Sequential for stage in stages)


def test_the_numbers_of_units_of_a_split_repeat_it():
    model = nn.Sequential(nn.Linear(2, 8), Block(8), nn.Linear(8, 2))
    names = split(model, 2, by="parameters").report.names
    assert split(model, balance=[len(n) for n in names]).report.names == names
