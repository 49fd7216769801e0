"""Plots stand alone and say what they show."""

from __future__ import annotations

from xml.etree import ElementTree

from homeai.evaluation.bench.plots import Axis, Line, plot


def test_plot_is_well_formed_and_labelled() -> None:
    lines = [Line("a < b", [(1.0, 0.1), (10.0, 1.0)]), Line("steps", [(2.0, 0.2), (3.0, 0.3)], is_step=True)]
    figure = ElementTree.fromstring(plot("Speed & wait", Axis("tok/s"), Axis("s", is_log=True), lines))
    svg = figure.find("svg")
    assert svg is not None
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"] == "Speed & wait: s against tok/s"
    assert [item.text for item in figure.iter("li")] == ["a < b", "steps"]


def test_points_lie_inside_of_the_frame() -> None:
    points = [(0.0, 0.001), (123.0, 50.0), (7.0, 0.0)]
    figure = ElementTree.fromstring(plot("t", Axis("x"), Axis("y", is_log=True), [Line("a", points)]))
    for circle in figure.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 640
        assert 0 <= float(circle.attrib["cy"]) <= 300


def test_a_single_point_is_a_plot() -> None:
    ElementTree.fromstring(plot("t", Axis("x", is_log=True), Axis("y", is_log=True), [Line("a", [(1.0, 1.0)])]))


def test_nothing_measured_is_said() -> None:
    assert "nothing was measured" in plot("t", Axis("x"), Axis("y"), [Line("a", [])])
