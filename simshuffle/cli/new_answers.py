"""Answers to the questions about a new scenario: by the user, by a machine, or the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simshuffle.cli.new_questions import (
    BY_NAME,
    MACHINE,
    NETWORK,
    PROBLEM_SOURCE,
    QUESTIONS,
    SHAPES,
    Question,
    questions_of,
    start_of,
)
from simshuffle.errors import InputError, Problem
from simshuffle.spec.units import Dimension, readable

if TYPE_CHECKING:
    from simshuffle.fabric.topology.base import Interconnect


def machine_answers(topology: str) -> dict[str, str]:
    """Return the answers that a network's file or a machine decides, by name of their
    question.

    A shape decides none: {}. A network decides those of `network_answers`. A machine
    decides gpus, accelerator, cores, memory and ssd, too, and 'nvlink', of which no question
    is.

    Raises:
        InputError: the file or machine is not valid.
    """
    start = start_of(topology)
    if start == NETWORK:
        from simshuffle.fabric.topology import Custom

        return network_answers(Custom(kind="custom", path=topology))
    if start != MACHINE:
        return {}
    from simshuffle.job.scenario.scenario import machine_of

    cluster = machine_of(topology)
    return {
        **network_answers(cluster.topology),
        "gpus": str(cluster.host.gpus),
        "accelerator": cluster.host.accelerator,
        "hcas": str(cluster.host.hcas),
        "cores": str(cluster.host.cores),
        "nvlink": readable(cluster.host.nvlink_bandwidth, Dimension.BANDWIDTH),
        "memory": readable(cluster.memory.capacity, Dimension.NBYTES),
        "ssd": readable(cluster.ssd.capacity, Dimension.NBYTES),
    }


def network_answers(topology: Interconnect) -> dict[str, str]:
    """Return the answers 'hosts', 'hcas' and 'hca_bandwidth' that a network decides.

    They are its hosts, the links of a host, and the bandwidth of such a link: the
    lowest one of a network's file.
    """
    link_bandwidth = getattr(topology, "link_bandwidth", None)
    if link_bandwidth is None:
        graph = topology.graph()
        hosts = [node for node, kind in graph.nodes(data="kind") if kind == "host"]
        link_bandwidth = min(
            bandwidth for *_, bandwidth in graph.edges(hosts, data="bandwidth")
        )
    return {
        "hosts": str(topology.num_hosts),
        "hcas": str(topology.links_per_host),
        "hca_bandwidth": readable(link_bandwidth, Dimension.BANDWIDTH),
    }


def complete_answers(user_answers: Mapping[str, str]) -> dict[str, str]:
    """Return an answer to every question of `QUESTIONS`, by its name.

    It is the user's, else that of `machine_answers`, else the default, also where the
    question is not asked. Several blanks in a row become one, and a count such as 5M is
    written out. Further names of the
    user's answers and of `machine_answers` are passed on unchecked.

    Raises:
        InputError: an answer is missing that only the user knows, is not asked for, or
            is not valid.
    """
    user_answers = {
        name: " ".join(answer.split()) for name, answer in user_answers.items()
    }
    for name in user_answers.keys() & BY_NAME.keys():
        user_answers[name] = BY_NAME[name].write_out(user_answers[name])
    topology = user_answers.get("topology", BY_NAME["topology"].default)
    if problem := BY_NAME["topology"].problem(topology):
        raise InputError(problem, PROBLEM_SOURCE)  # it decides what else is asked
    questions = questions_of(topology)
    problems = [
        find_problem(question, user_answers, topology, question in questions)
        for question in QUESTIONS
    ]
    if any(problems):
        raise InputError([problem for problem in problems if problem], PROBLEM_SOURCE)
    defaults = {question.name: question.default for question in QUESTIONS}
    return {**defaults, **machine_answers(topology), **user_answers}


def find_problem(
    question: Question, user_answers: Mapping[str, str], topology: str, is_asked: bool
) -> Problem | None:
    """Return the problem with the answer to a question; None if there is none.

    A question that is not asked of this topology must have no answer, and a needed one
    must have one.
    """
    answer = user_answers.get(question.name)
    if is_asked and answer is not None:
        return question.problem(answer)
    if is_asked and question.needed:
        return Problem(
            question.option, f"is required: {question.text}", remedy=question.advice
        )
    if answer is None:
        return None
    rule = f"does not apply where --topology is {topology}"
    remedy = "Leave it out, and edit the machine file that is written."
    if topology in SHAPES:
        remedy = f"Leave it out: it applies to {', '.join(question.starts)}."
    return Problem(question.option, rule, answer, remedy)
