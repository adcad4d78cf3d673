"""What is decided before training, from simulations: the survey and the default network.

Both rest on thousands of simulations and on matrices in floating point, so that another machine
decides a little differently. A run that is resumed takes its decisions from where it began.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.random as jr

from .._core.problem import Problem
from .._core.ranges import ranges_of
from .._core.types import Key
from .._recipe.efficient import Line, OfLikelihood
from .._recipe.expected_error import ErrorAlong, ErrorByY
from .._recipe.settings import Recipe
from .._recipe.smooth import Smooth
from .._recipe.survey import Range, Survey, checked_summaries, survey, survey_pilot
from .._recipe.training_prior import TrainingPrior
from .._runtime.digest import program_identity
from .._runtime.progress import Progress
from .._serialise.container import Contents
from .._serialise.registry import entries_of
from .._serialise.tree import BrokenTreeError, Decoder, Encoder
from .._summaries.layout import Layout, Part
from .network import DefaultNetwork, default_network
from .scoring import Parts, places_of

_ENTRIES = entries_of(
    *(ErrorAlong, ErrorByY, Layout, Line, OfLikelihood, Part, Parts, Range, Smooth, TrainingPrior)
)
_OF_SURVEY = (
    *("training_prior", "log_sd", "ranges", "statistics", "layout", "note", "seconds"),
    "efficient_error",
)


class Question(NamedTuple):
    """What decisions are asked for."""

    problem: Problem
    key: Key
    network_key: Key
    recipe: Recipe
    summaries: Any
    """Functions of a user, as in `survey`."""
    training_prior: Any
    """Of a user; None leaves it to the survey, or to the problem."""
    chooses_prior: bool
    correction: bool
    """Whether the network is to correct another estimate."""
    makes_network: bool

    def trained(self, seen: Survey) -> Problem:
        """The problem to train on."""
        problem = dataclasses.replace(self.problem, exchangeable=seen.layout.is_one_set)
        prior = seen.training_prior if self.chooses_prior else self.training_prior
        return problem if prior is None else dataclasses.replace(problem, prior=prior, crb=None)

    def identity(self) -> dict[str, Any]:
        """Of all functions that decisions depend on."""

        def all_of(key: Key) -> list[Any]:
            theta = self.problem.sample_prior(key)
            x = self.problem.simulate(key, theta)
            functions = checked_summaries(self.summaries)
            found = [theta, self.problem.y_of(theta), x, [function(x) for function in functions]]
            if self.problem.log_likelihood is not None:
                found.append(self.problem.log_likelihood(theta, x))
            if self.training_prior is not None:
                trained = dataclasses.replace(self.problem, prior=self.training_prior, crb=None)
                found.append(trained.sample_prior(key))
            return found

        said = [self.problem.exchangeable, repr(self.problem.layout)]
        said += [self.chooses_prior, self.correction, self.makes_network]
        return {"said": said, **program_identity(jax.make_jaxpr(all_of)(jr.key(0)))}

    def named(self) -> dict[str, Any]:
        """What decisions refer to and whoever asks again has, too."""
        own = {f"summary {i}": f for i, f in enumerate(checked_summaries(self.summaries))}
        return {"problem": self.problem, "prior": self.problem.prior, **own}


class Decisions(NamedTuple):
    """The answers."""

    survey: Survey
    made: DefaultNetwork | None
    """None if there is a network already."""


def decide(question: Question, stages: Progress) -> Decisions:
    """Look at the problem, and make the default network."""
    with stages.stage("surveying"):
        seen = survey(
            question.problem,
            key=question.key,
            recipe=question.recipe,
            summaries=question.summaries,
        )
    if not question.makes_network:
        return Decisions(seen, None)
    with stages.stage("making the network"):
        made = default_network(
            question.trained(seen), seen, correction=question.correction, key=question.network_key
        )
    return Decisions(seen, made)


def as_contents(question: Question, decisions: Decisions) -> Contents:
    """The decisions as a file; what the user gave is named there, and not stored."""
    seen, made = decisions
    given, prior = question.named(), seen.training_prior
    nodes, tensors = {}, {}
    if isinstance(prior, TrainingPrior):
        encoder = Encoder({"coordinates": prior.coordinates}, _ENTRIES)
        nodes["training prior"] = encoder.node(prior, "prior")
        tensors |= encoder.tensors
        given["training prior"] = prior  # one object for all that refer to it
    tree: dict[str, Any] = {"survey": {name: getattr(seen, name) for name in _OF_SURVEY}}
    if made is not None:
        places = made.places
        tree["made"] = {
            **made._asdict(),
            "places": None if places is None else Parts(places.tied, places.nuisances),
        }
    encoder = Encoder(given, _ENTRIES)
    nodes["decisions"] = encoder.node(tree, "decisions")
    return Contents(nodes, tensors | encoder.tensors)


def from_contents(question: Question, contents: Contents) -> Decisions:
    """The decisions that a file holds."""
    given = question.named()
    header, tensors = contents
    if "training prior" in header:
        found = ranges_of(question.problem, question.key)
        if isinstance(found, str):
            raise BrokenTreeError(f"it has ranges of theta, and here {found}")
        first = Decoder(tensors, {"coordinates": found.coordinates}, _ENTRIES)
        given["training prior"] = first.value(header["training prior"])
        tensors = first.tensors
    tree = Decoder(tensors, given, _ENTRIES).value(header["decisions"])
    pilot = survey_pilot(question.problem, question.recipe.survey, question.key)
    seen = Survey(**tree["survey"], pilot=pilot, recipe=question.recipe)
    if "made" not in tree:
        return Decisions(seen, None)
    made = DefaultNetwork(**tree["made"])
    if made.places is not None:
        parts: Any = made.places
        places = places_of(seen, made.network.plug_in, question.recipe.network, parts)
        made = made._replace(places=places)
    return Decisions(seen, made)
