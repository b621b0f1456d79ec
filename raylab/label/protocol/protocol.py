"""The decision of one case by annotators, an evaluator, an adjudicator, or else a person.

The only side effects are calls to the given `Chat`. Equal cases and settings make equal calls in
the same order, so the journal can answer an interrupted run up to where it stopped. Every reply of
a model leads to a typed outcome.
"""

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeVar

from raylab.core.config.base import AS_PUBLISHED
from raylab.core.errors import CallError, LabelError, TextError
from raylab.core.printable import join_names
from raylab.label.codebooks.codebook import (
    PLACES,
    SYNTHESIS,
    Agreement,
    Label,
    Verdict,
    clean,
    compare,
    in_field,
)
from raylab.label.config.jobs import MAX_ANNOTATORS, ProtocolConfig
from raylab.label.input.cases import Case
from raylab.label.protocol.outcome import (
    ADJUDICATE,
    AGAIN,
    CANDIDATE,
    CANDIDATE_ANNOTATOR,
    CONFIRM,
    Adjudication,
    Annotator,
    Answer,
    Call,
    Classification,
    Evaluation,
    Outcome,
    Status,
    classify_stage,
    describe_stage,
    evaluate_stage,
)
from raylab.label.protocol.replies import (
    ChoiceReply,
    LabelReply,
    ReportReply,
    UnreadableError,
    judge,
    judge_unparsable,
    read_reply,
    settle,
)
from raylab.label.protocol.settings import RoleModel, Settings
from raylab.llm.chat import Chat, Message
from raylab.llm.prompts import PromptFile, Schema, neutral, shorten

V = TypeVar("V")
Relation = Literal["same", "operators", "labels"]
"""The relation of codes: the same, the same labels composed differently, or other labels."""


async def annotate(
    case: Case, chat: Chat, settings: Settings, generation: str = AS_PUBLISHED
) -> Outcome:
    """Takes a case through the protocol.

    A refused call ends the case as `failed` and keeps all earlier answers. An answer that is still
    unreadable after one more turn leaves the case to a person. Any other LlmError leaves the case
    open, so that it can be tried again.

    The `generation` is that of the score tree that the outcome belongs to.
    """
    course = _Course(case, chat, settings)
    try:
        end = await course.decide()
    except _CaseEnded as ended:
        end = ended.end
    return course.outcome(generation, end)


async def confirm(
    case: Case, label: Label, rationale: str, chat: Chat, settings: Settings
) -> Evaluation:
    """Evaluates the label that a person gave a case, and their reason for it.

    A refused call, or a reply that cannot be read after one more turn, raises CallError.
    """
    try:
        return await _Course(case, chat, settings).judge(CONFIRM, _classification(label, rationale))
    except _CaseEnded as ended:
        raise CallError(f"case {case.id}: {ended}") from ended


def draw_order(seed: int, case: str, answers: Iterable[Annotator]) -> tuple[Annotator, ...]:
    """Returns the annotators of a case in an order drawn by seed and case id."""
    digest = hashlib.sha256(f"{seed}:{case}".encode(errors="surrogatepass")).digest()
    left, order, number = sorted(answers), list[Annotator](), int.from_bytes(digest, "little")
    while left:
        number, place = divmod(number, len(left))
        order.append(left.pop(place))
    return tuple(order)


# The decision table


def _relate(labels: Iterable[Label]) -> Relation:
    if len({label.composition for label in labels}) == 1:
        return "same"
    return "operators" if len({label.categories for label in labels}) == 1 else "labels"


def _next_step(
    codes: Counter[str], votes: Counter[str], needed: int, rules: ProtocolConfig
) -> Literal["accept", "adjudicate", "human"]:
    """Returns the next step.

    Args:
        codes: The annotators that gave each code.
        votes: The annotators whose answer is acceptable, by code.
        needed: The annotators that must give the same acceptable code.
    """
    # The published policy adjudicates before it asks what is acceptable.
    if rules.policy == "published" and max(codes.values()) < needed:
        return "adjudicate"
    if max(votes.values(), default=0) >= needed:
        return "accept"
    if votes.total() >= needed or (votes and rules.policy == "lenient"):
        return "adjudicate"
    return "human"


# The course of a case


class _End(NamedTuple):
    status: Status
    step: str
    reason: str | None = None
    label: Label | None = None


class _CaseEnded(Exception):
    """The early end of a case; without a readable reply, also its problem and calls."""

    def __init__(
        self,
        status: Status,
        step: str,
        reason: str,
        problem: str | None = None,
        calls: tuple[Call, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.end, self.problem, self.calls = _End(status, step, reason), problem, calls


class _Course:
    """One case on its way through the protocol, with all results so far."""

    def __init__(self, case: Case, chat: Chat, settings: Settings) -> None:
        self._case, self._chat, self._settings = case, chat, settings
        self._form, self._prompts = settings.prompts.form, settings.prompts
        self._started = datetime.now(UTC)
        self._calls: list[Call] = []
        self._classified: dict[Annotator, Classification] = {}
        self._evaluated: dict[Annotator, Evaluation] = {}
        self._agreements: dict[str, Agreement] = {}
        self._adjudication: Adjudication | None = None

    async def decide(self) -> _End:
        """Decides the case."""
        prompt, length = self._prompts.classify, len(self._case.description)
        # A description is never cut: what is left out might decide the case.
        if length > prompt.longest:
            raise _CaseEnded(
                Status.HUMAN,
                "human:description",
                f"the description has {length:,} characters and the prompt {prompt.name} takes "
                f"{prompt.longest:,}: shorten it to what says how the system works"
                + (", or choose another llm.prompt" if self._prompts.warning else ""),
            )
        if self._settings.rules.stages == "evaluate":
            return await self._decide_candidate()
        annotators = self._settings.annotators
        await _all(map(self._classify, annotators))
        await _all(map(self._evaluate, annotators))
        # The annotators that must give the same acceptable code.
        is_all = self._settings.rules.acceptance == "all"
        needed = len(annotators) if is_all else len(annotators) // 2 + 1
        if len(self._labels) < needed:
            name = next(name for name in annotators if name not in self._labels)
            problem = f"no code of {name} could be read: {self._classified[name].problem}"
            raise _CaseEnded(Status.HUMAN, "human:unparsable", problem)
        return await self._compare(needed)

    async def _compare(self, needed: int) -> _End:
        """Decides by the codes that could be read and what the evaluator says of them."""
        rules, labels = self._settings.rules, self._labels
        self._agreements = {
            f"{a}{b}": compare(labels[a], labels[b], self._settings.codebook.distance)
            for a, b in combinations(labels, 2)
        }
        acceptable = {name: labels[name] for name in labels if self._evaluated[name].acceptable}
        codes, votes = (
            Counter(code.composition for code in each.values()) for each in (labels, acceptable)
        )
        match _next_step(codes, votes, needed, rules):
            case "accept":
                ((code, _),) = votes.most_common(1)
                label = next(own for own in acceptable.values() if own.composition == code)
                return _End(Status.ACCEPTED, "accept", label=label)
            case "adjudicate" if rules.adjudicator == "model":
                return await self._adjudicate()
            case "adjudicate" if _relate(labels.values()) != "same":
                # The fields in which records differ, or what the codes are.
                said = [f"{name} {label.composition}" for name, label in labels.items()]
                fields = [
                    field
                    for field in next(iter(labels.values())).values
                    if len({in_field(label.categories, field) for label in labels.values()}) > 1
                ]
                differ = join_names(fields or said, MAX_ANNOTATORS)
                step = "disagreement"
                reason = f"the codes differ{' in' if fields else ','} {differ}"
            case _ if acceptable:
                number, verb = ("few", "are") if len(acceptable) > 1 else ("one", "is")
                step = f"{number}-acceptable"
                reason = f"only {join_names([*acceptable], MAX_ANNOTATORS)} {verb} acceptable"
            case _:
                step, reason = "none-acceptable", "no code is acceptable"
        grades = ", ".join(f"{name} {_grade(self._evaluated[name])}" for name in labels)
        return _End(Status.HUMAN, f"human:{step}", f"{reason}: {grades}")

    async def _decide_candidate(self) -> _End:
        """Has the evaluator judge the candidate of the row, and asks nobody else."""
        candidate, repairs = self._case.candidate, list[str]()
        assert candidate is not None, "a case without a candidate is no input"
        try:
            label = self._form.read(candidate.code, repairs)
            classification = _classification(label, candidate.rationale, repairs)
        except LabelError as error:
            classification = _classification(None, candidate.rationale, problem=str(error))
        self._classified[CANDIDATE_ANNOTATOR] = classification
        await self._evaluate(CANDIDATE_ANNOTATOR)
        evaluation = self._evaluated[CANDIDATE_ANNOTATOR]
        if evaluation.acceptable:
            return _End(Status.ACCEPTED, "accept", label=classification.label)
        reason = f"the candidate is not acceptable: {_grade(evaluation)}"
        return _End(Status.HUMAN, "human:candidate", reason)

    async def _classify(self, annotator: Annotator) -> None:
        """Asks an annotator; an answer that cannot be read has no code."""
        try:
            reply, repairs, calls = await self._ask(
                classify_stage(annotator),
                self._settings.annotators[annotator],
                self._prompts.classify,
                {"description": self._case.description},
                partial(read_reply, self._form, LabelReply),
            )
            answer = _classification(reply.label, reply.rationale, repairs, calls)
        except _CaseEnded as ended:
            if ended.problem is None:
                raise
            answer = _classification(None, "", calls=ended.calls, problem=ended.problem)
        self._classified[annotator] = answer

    async def _evaluate(self, annotator: Annotator) -> None:
        answer = self._classified[annotator]
        self._evaluated[annotator] = await self.judge(evaluate_stage(annotator), answer)

    async def judge(self, stage: str, classification: Classification) -> Evaluation:
        """Returns the evaluator's judgement of an answer; one without a code is not sent to it."""
        if classification.label is None:
            return judge_unparsable(classification.problem or "no reason given")
        prompt, settings = self._prompts.evaluate, self._settings
        content = {
            "description": self._case.description,
            "code": self._form.show(classification.label),
            "rationale": shorten(classification.rationale, prompt.shown),
        }
        read = partial(read_reply, self._form, ReportReply)
        report, repairs, calls = await self._ask(stage, settings.evaluator, prompt, content, read)
        # A model too small to name unmet criteria says FAIL alone.
        if self._form.failed_criterion and report.verdict is Verdict.FAIL:
            report = replace(report, issues=(self._form.failed_criterion,))
        criteria = settings.codebook.criteria
        evaluation = judge(report, classification.format, settings.rules, criteria)
        return evaluation.model_copy(update={"repairs": repairs, "calls": calls})

    async def _adjudicate(self) -> _End:
        """Has the adjudicator choose, and the evaluator confirm the choice."""
        settings, labels, prompt = self._settings, self._labels, self._prompts.adjudicate
        assert settings.adjudicator is not None, "nobody is configured to adjudicate"
        # The distinct answers are shown in an order drawn by seed and case, without their names.
        # Answers are distinct if their codes differ, or if the evaluator accepts only one of them.
        distinct: dict[tuple[Label, bool], Annotator] = {}
        for name in draw_order(settings.rules.seed, self._case.id, labels):
            distinct.setdefault((labels[name], self._evaluated[name].acceptable), name)
        places = dict(zip(PLACES, distinct.values(), strict=False))
        shown = {place: labels[name] for place, name in places.items()}
        reply, repairs, calls = await self._ask(
            ADJUDICATE,
            settings.adjudicator,
            prompt,
            {
                "description": self._case.description,
                "candidates": [
                    {
                        "place": place,
                        "code": self._form.show(labels[name]),
                        "rationale": shorten(self._classified[name].rationale, prompt.shown),
                        "verdict": self._evaluated[name].verdict.value,
                        "score": self._evaluated[name].score,
                        "issues": list(self._evaluated[name].issues),
                        "summary": shorten(self._evaluated[name].summary, prompt.shown),
                    }
                    for place, name in places.items()
                ],
            },
            lambda *reply: settle(self._form, *read_reply(self._form, ChoiceReply, *reply), shown),
            self._form.schema(ChoiceReply.kind, len(shown)),
        )
        classification = _classification(reply.label, reply.rationale, repairs, calls)
        self._adjudication = choice = Adjudication(
            order=tuple(places.values()),
            choice=places.get(reply.choice or SYNTHESIS, SYNTHESIS),
            classification=classification,
        )
        report = await self.judge(CONFIRM, classification)
        self._adjudication = choice.model_copy(update={"confirmation": report})
        if report.acceptable:
            return _End(Status.ADJUDICATED, "accept", label=classification.label)
        reason = f"the adjudicated code is not acceptable: {_grade(report)}"
        return _End(Status.HUMAN, "human:unconfirmed", reason)

    @property
    def _labels(self) -> dict[Annotator, Label]:
        """The codes that could be read, in the order of the annotators."""
        labels = {name: answer.label for name, answer in sorted(self._classified.items())}
        return {name: label for name, label in labels.items() if label is not None}

    async def _ask(
        self,
        stage: str,
        model: RoleModel,
        prompt: PromptFile,
        content: dict[str, Any],
        read: Callable[[str, str, str], tuple[V, list[str]]],
        schema: Schema | None = None,
    ) -> tuple[V, tuple[str, ...], tuple[Call, ...]]:
        """Asks a model and, if its reply cannot be read, once more with the reason.

        Returns what the reply says, the repairs that were needed to read it, and the calls.

        Args:
            read: Takes text and finish reason of a reply, and what was shown; returns what it says,
                and its repairs.
            schema: Schema that both replies should satisfy; None is that of the prompt.
        """
        calls, problems, schema = list[Call](), list[str](), schema or prompt.schema
        question, turns = prompt, prompt.messages(**content)
        shown = turns[-1].content
        for name in (stage, f"{stage}{AGAIN}"):
            request = model.request(turns, schema)
            try:
                reply = await self._chat.complete(request, self._case.description_hash, name)
            except TextError as error:
                # The second turn would send the same text.
                problems.append(f"there is none: {error}")
                break
            except CallError as error:
                reason = f"{describe_stage(name)}: {error}"
                raise _CaseEnded(Status.FAILED, f"failed:{name}", reason) from error
            text, response_model = clean(reply.text), clean(reply.response_model)
            call = Call(
                stage=name,
                model=model.chat.model,
                prompt=f"{question.name}@{question.version}",
                prompt_hash=question.hash,
                seed=model.chat.seed,
                reply=replace(reply, response_model=response_model, text=text),
            )
            calls.append(call)
            self._calls.append(call)
            try:
                value, repairs = read(text, reply.finish_reason, shown)
            except UnreadableError as error:
                problems.append(str(error))
            else:
                failures = [f"asked again: {problem}" for problem in problems]
                return value, (*failures, *repairs), tuple(calls)
            question = self._prompts.repair
            said = shorten(neutral(text), prompt.shown) or "(no text)"
            again = question.messages(problem=neutral(problems[0]), keys=prompt.keys)
            turns = (*turns, Message("assistant", said), *again)
        problem = "; asked again: ".join(problems)
        reason = f"{describe_stage(stage)}: the reply could not be read: {problem}"
        step = f"human:{stage}-unreadable"
        raise _CaseEnded(Status.HUMAN, step, reason, problem, tuple(calls))

    def outcome(self, generation: str, end: _End) -> Outcome:
        """Returns the outcome, with every result so far."""
        case, rules, adjudication = self._case, self._settings.rules, self._adjudication
        # The steps stand in the order of the protocol: answers come in any order.
        path = list[str]()
        for name, answer in sorted(self._classified.items()):
            step = CANDIDATE if rules.stages == "evaluate" else classify_stage(name)
            path.append(f"{step}:{answer.format}")
        for name, report in sorted(self._evaluated.items()):
            path.append(f"{evaluate_stage(name)}:{report.verdict}:{report.score}")
        if self._agreements:
            path.append(f"compare:{_relate(self._labels.values())}")
        if adjudication is not None:
            path.append(f"{ADJUDICATE}:{''.join(adjudication.order)}:{adjudication.choice}")
            if (report := adjudication.confirmation) is not None:
                path.append(f"{CONFIRM}:{report.verdict}:{report.score}")
        sent = [call.reply for call in self._calls if not call.reply.cached]
        priced = [reply.cost for reply in sent if reply.cost is not None]
        outcome = Outcome(
            case=case.id,
            description_hash=case.description_hash,
            generation=generation,
            gold=case.gold,
            gold_label=case.gold_label,
            candidate=case.candidate,
            trap=case.trap,
            meta=dict(case.meta),
            status=end.status,
            reason=end.reason,
            path=(*path, end.step),
            label=end.label,
            answers={
                name: Answer(classification=answer, evaluation=self._evaluated.get(name))
                for name, answer in sorted(self._classified.items())
            },
            agreements=self._agreements,
            adjudication=adjudication,
            prompt_tokens=sum(reply.prompt_tokens for reply in sent),
            completion_tokens=sum(reply.completion_tokens for reply in sent),
            cost=math.fsum(priced) if len(priced) == len(sent) else None,
            started=self._started,
            finished=datetime.now(UTC),
        )
        # The calls whose replies no part of the outcome has, in the order of their stages.
        used = {call.reply.key for call in outcome.calls}
        unread = (call for call in self._calls if call.reply.key not in used)
        ordered = tuple(sorted(unread, key=lambda call: call.stage))
        return outcome.model_copy(update={"unread": ordered})


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Waits for all, so that a paid answer is kept if another fails; raises the worst error."""

    def rank(error: BaseException) -> int:
        # Errors that leave the case open, then failed calls, then replies that cannot be read.
        if not isinstance(error, _CaseEnded):
            return 0
        return 1 if error.end.status is Status.FAILED else 2

    results = await asyncio.gather(*coroutines, return_exceptions=True)
    if errors := [result for result in results if result is not None]:
        raise min(errors, key=rank)


def _grade(evaluation: Evaluation) -> str:
    return f"{evaluation.verdict} {evaluation.score}"


def _classification(
    label: Label | None,
    rationale: str,
    repairs: Sequence[str] = (),
    calls: tuple[Call, ...] = (),
    problem: str | None = None,
) -> Classification:
    return Classification(
        label=label,
        rationale=rationale,
        format="unparsable" if label is None else "repaired" if repairs else "strict",
        repairs=tuple(repairs),
        problem=problem,
        calls=calls,
    )
