"""The decision of one case by two annotators, an evaluator, an adjudicator, or else a person.

The only side effects are calls to the given `Chat`. Equal cases and settings make equal calls in
the same order, so the journal can answer an interrupted run up to where it stopped. Every reply of
a model leads to a typed outcome.
"""

import asyncio
import hashlib
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import (
    ADJUDICATE,
    CANDIDATE,
    CANDIDATE_SIDE,
    CONFIRM,
    SIDES,
    Adjudication,
    Answer,
    Call,
    Classification,
    Evaluation,
    Outcome,
    Side,
    Status,
    classify_stage,
    evaluate_stage,
)
from raylab.annotation.replies import (
    UnreadableError,
    judge,
    judge_unparsable,
    read_reply,
    settle,
)
from raylab.annotation.settings import RoleModel, Settings
from raylab.codebook import (
    Agreement,
    Choice,
    ChoiceReply,
    Label,
    LabelReply,
    ReportReply,
    Verdict,
    clean,
    compare,
)
from raylab.config.annotation import ProtocolConfig
from raylab.config.base import AS_PUBLISHED
from raylab.errors import CallError, LabelError
from raylab.llm.chat import Chat, Message, Reply
from raylab.llm.prompts import PromptFile, neutral, shortened

V = TypeVar("V")
Relation = Literal["same", "operators", "labels"]
"""The relation of two codes: the same, the same labels composed differently, or other labels."""


async def annotate(
    case: Case, chat: Chat, settings: Settings, generation: str = AS_PUBLISHED
) -> Outcome:
    """Takes a case through the protocol.

    A refused call ends the case as `failed` and keeps all earlier answers. An answer that is still
    unreadable after one more turn leaves the case to a person.

    Args:
        case: The case to classify.
        chat: The chat that answers the calls.
        settings: Models, prompts and rules.
        generation: Generation of the score tree that the outcome belongs to.

    Raises:
        DeadlineError: A call got no answer in time; the case stays open.
        EndpointError: Every call would fail; the case stays open.
        BudgetError: The budget is used up; the case stays open.
        StoppedError: The run is stopping; the case stays open.
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

    Raises:
        CallError: The call was refused, or its reply cannot be read after one more turn.
        DeadlineError: The call got no answer in time.
        EndpointError: Every call would fail.
        BudgetError: The budget is used up.
        StoppedError: The run is stopping.
    """
    try:
        return await _Course(case, chat, settings).judge(CONFIRM, _classify(label, rationale))
    except _CaseEnded as ended:
        raise CallError(f"case {case.id}: {ended}") from ended


def draw_order(seed: int, case: str) -> tuple[Side, Side]:
    """Returns the order in which A and B of a case are shown, drawn by seed and case id."""
    digest = hashlib.sha256(f"{seed}:{case}".encode(errors="surrogatepass")).digest()
    return ("A", "B") if digest[0] % 2 == 0 else ("B", "A")


# The decision table


def _relate(a: Label, b: Label) -> Relation:
    if a.composition == b.composition:
        return "same"
    return "operators" if a.categories == b.categories else "labels"


def _next_step(
    acceptable: tuple[bool, bool], relation: Relation, rules: ProtocolConfig
) -> Literal["accept", "adjudicate", "human"]:
    """Returns the next step, given which of the codes of A and B are acceptable."""
    alike = relation == "same" or (relation == "operators" and rules.accept_operator_differences)
    if rules.policy == "published" and not alike:
        return "adjudicate"
    match acceptable:
        case (True, True):
            return "accept" if alike else "adjudicate"
        case (False, False):
            return "human"
        case _:
            return "adjudicate" if rules.policy == "lenient" else "human"


# The course of a case


class _End(NamedTuple):
    status: Status
    step: str
    reason: str | None = None
    label: Label | None = None


class _CaseEnded(Exception):
    """The early end of a case."""

    def __init__(self, status: Status, step: str, reason: str) -> None:
        super().__init__(reason)
        self.end = _End(status, step, reason)


class _Unreadable(_CaseEnded):
    """The end of a case by two unreadable replies, with their calls."""

    def __init__(self, stage: str, problem: str, calls: tuple[Call, ...]) -> None:
        reason = f"{stage}: the reply could not be read: {problem}"
        super().__init__(Status.HUMAN, f"human:{stage}-unreadable", reason)
        self.problem, self.calls = problem, calls


class _Course:
    """One case on its way through the protocol, with all results so far."""

    def __init__(self, case: Case, chat: Chat, settings: Settings) -> None:
        self._case, self._chat, self._settings = case, chat, settings
        self._form, self._prompts = settings.prompts.form, settings.prompts
        self._started = datetime.now(UTC)
        self._calls: list[Call] = []
        self._classified: dict[Side, Classification] = {}
        self._evaluated: dict[Side, Evaluation] = {}
        self._agreement: Agreement | None = None
        self._adjudication: Adjudication | None = None

    async def decide(self) -> _End:
        """Takes the case to its end.

        Raises:
            _CaseEnded: A call failed, or a reply or code could not be read.
        """
        self._refuse_long_description()
        if self._settings.rules.stages == "evaluate":
            return await self._decide_candidate()
        await _both(self._classify("A"), self._classify("B"))
        await _both(self._evaluate("A"), self._evaluate("B"))
        for side, classification in self._classified.items():
            if classification.label is None:
                problem = f"no code of {side} could be read: {classification.problem}"
                raise _CaseEnded(Status.HUMAN, "human:unparsable", problem)
        return await self._compare()

    async def _compare(self) -> _End:
        """Decides by the codes of both and what the evaluator says of them."""
        rules, labels = self._settings.rules, (self._label_of("A"), self._label_of("B"))
        self._agreement = compare(*labels, self._settings.codebook.distance)
        acceptable = self._evaluated["A"].acceptable, self._evaluated["B"].acceptable
        match _next_step(acceptable, _relate(*labels), rules):
            case "accept":
                return _End(Status.ACCEPTED, "accept", label=labels[0])
            case "adjudicate" if rules.adjudicator == "model":
                return await self._adjudicate()
            case "adjudicate" if _relate(*labels) != "same":
                codes = " and ".join(f"{side} {self._label_of(side).composition}" for side in SIDES)
                step, reason = "disagreement", f"the codes differ, {codes}"
            case _ if any(acceptable):
                step = "one-acceptable"
                reason = f"only {SIDES[acceptable.index(True)]} is acceptable"
            case _:
                step, reason = "none-acceptable", "neither code is acceptable"
        grades = ", ".join(f"{side} {_grade(self._evaluated[side])}" for side in SIDES)
        return _End(Status.HUMAN, f"human:{step}", f"{reason}: {grades}")

    def _refuse_long_description(self) -> None:
        prompt, length = self._prompts.classify, len(self._case.description)
        if length > prompt.longest:
            raise _CaseEnded(
                Status.FAILED,
                "failed:description",
                f"the description has {length:,} characters and the prompt {prompt.name} takes "
                f"{prompt.longest:,}: shorten it to what says how the system works"
                + (", or choose another llm.prompt" if self._prompts.warning else ""),
            )

    async def _decide_candidate(self) -> _End:
        """Has the evaluator judge the candidate of the row, and asks nobody else."""
        candidate, repairs = self._case.candidate, list[str]()
        if candidate is None:
            raise _CaseEnded(Status.FAILED, f"failed:{CANDIDATE}", "the row has no candidate")
        try:
            label = self._form.read(candidate.code, repairs)
            classification = _classify(label, candidate.rationale, repairs)
        except LabelError as error:
            classification = _unparsable(candidate.rationale, str(error))
        self._classified[CANDIDATE_SIDE] = classification
        await self._evaluate(CANDIDATE_SIDE)
        evaluation = self._evaluated[CANDIDATE_SIDE]
        if evaluation.acceptable:
            return _End(Status.ACCEPTED, "accept", label=classification.label)
        reason = f"the candidate is not acceptable: {_grade(evaluation)}"
        return _End(Status.HUMAN, "human:candidate", reason)

    async def _classify(self, side: Side) -> None:
        """Asks an annotator; an answer that cannot be read has no code."""
        try:
            reply, repairs, calls = await self._ask(
                classify_stage(side),
                self._settings.annotators[side],
                self._prompts.classify,
                {"description": self._case.description},
                partial(read_reply, self._form, LabelReply),
            )
        except _Unreadable as ended:
            self._classified[side] = _unparsable("", ended.problem, ended.calls)
        else:
            self._classified[side] = _classify(reply.label, reply.rationale, repairs, calls)

    async def _evaluate(self, side: Side) -> None:
        self._evaluated[side] = await self.judge(evaluate_stage(side), self._classified[side])

    async def judge(self, stage: str, classification: Classification) -> Evaluation:
        """Returns the evaluator's judgement of an answer; one without a code is not sent to it."""
        if classification.label is None:
            return judge_unparsable(classification.problem or "no reason given")
        prompt, settings = self._prompts.evaluate, self._settings
        content = {
            "description": self._case.description,
            "code": self._form.show(classification.label),
            "rationale": shortened(classification.rationale, prompt.shown),
        }
        read = partial(read_reply, self._form, ReportReply)
        report, repairs, calls = await self._ask(stage, settings.evaluator, prompt, content, read)
        if self._form.failed_criterion and report.verdict is Verdict.FAIL:
            report = report.model_copy(update={"issues": (self._form.failed_criterion,)})
        criteria = settings.codebook.criteria
        evaluation = judge(report, classification.format, settings.rules, criteria)
        return evaluation.model_copy(update={"repairs": repairs, "calls": calls})

    async def _adjudicate(self) -> _End:
        """Has the adjudicator choose, and the evaluator confirm the choice."""
        self._adjudication = choice = await self._choose()
        report = await self.judge(CONFIRM, choice.classification)
        self._adjudication = choice.model_copy(update={"confirmation": report})
        if report.acceptable:
            return _End(Status.ADJUDICATED, "accept", label=choice.classification.label)
        reason = f"the adjudicated code is not acceptable: {_grade(report)}"
        return _End(Status.HUMAN, "human:unconfirmed", reason)

    async def _choose(self) -> Adjudication:
        """Shows the candidates in an order drawn by seed and case, and without their names."""
        settings = self._settings
        assert settings.adjudicator is not None, "nobody is configured to adjudicate"
        order = draw_order(settings.rules.seed, self._case.id)
        sides: dict[Choice, Side] = {"first": order[0], "second": order[1]}
        labels: dict[Choice, Label] = {
            choice: self._label_of(side) for choice, side in sides.items()
        }
        candidates = [self._shown(side) for side in order]
        reply, repairs, calls = await self._ask(
            ADJUDICATE,
            settings.adjudicator,
            self._prompts.adjudicate,
            {"description": self._case.description, "candidates": candidates},
            lambda text, finish: settle(
                self._form, *read_reply(self._form, ChoiceReply, text, finish), labels
            ),
        )
        final = _classify(reply.label, reply.rationale, repairs, calls)
        chosen = sides[reply.choice] if reply.choice in sides else "synthesis"
        return Adjudication(order=order, choice=chosen, classification=final)

    def _shown(self, side: Side) -> dict[str, Any]:
        """Returns an answer as the adjudicator is shown it."""
        length, evaluation = self._prompts.adjudicate.shown, self._evaluated[side]
        return {
            "code": self._form.show(self._label_of(side)),
            "rationale": shortened(self._classified[side].rationale, length),
            "verdict": evaluation.verdict.value,
            "score": evaluation.score,
            "issues": list(evaluation.issues),
            "summary": shortened(evaluation.summary, length),
        }

    def _label_of(self, side: Side) -> Label:
        label = self._classified[side].label
        assert label is not None, "the answer has no code"
        return label

    async def _ask(
        self,
        stage: str,
        model: RoleModel,
        prompt: PromptFile,
        content: dict[str, Any],
        read: Callable[[str, str], tuple[V, list[str]]],
    ) -> tuple[V, tuple[str, ...], tuple[Call, ...]]:
        """Asks a model and, if its reply cannot be read, once more with the reason.

        Returns what the reply says, the repairs that were needed to read it, and the calls.

        Args:
            stage: Stage of the first call.
            model: The model to ask.
            prompt: The prompt of the first turn, whose schema both replies should satisfy.
            content: The variables of the prompt.
            read: Takes text and finish reason of a reply; returns what it says, and its repairs.
        """
        calls, problems, schema = list[Call](), list[str](), prompt.schema
        question, turns = prompt, prompt.messages(**content)
        for name in (stage, f"{stage}-repair"):
            reply = await self._call(name, model, question, turns, schema, calls)
            try:
                value, repairs = read(reply.text, reply.finish_reason)
            except UnreadableError as error:
                problems.append(str(error))
            else:
                again = [f"asked again: {problem}" for problem in problems]
                return value, (*again, *repairs), tuple(calls)
            question = self._prompts.repair
            said = shortened(neutral(reply.text), prompt.shown) or "(no text)"
            request = question.messages(problem=neutral(problems[0]), keys=prompt.keys)
            turns = (*turns, Message("assistant", said), *request)
        raise _Unreadable(stage, "; asked again: ".join(problems), tuple(calls))

    async def _call(
        self,
        stage: str,
        model: RoleModel,
        prompt: PromptFile,
        turns: tuple[Message, ...],
        schema: dict[str, Any],
        calls: list[Call],
    ) -> Reply:
        """Returns the reply to a call, which is noted in `calls`."""
        request = model.request(turns, schema, self._settings.salt)
        try:
            reply = await self._chat.complete(request, self._case.description_hash, stage)
        except CallError as error:
            raise _CaseEnded(Status.FAILED, f"failed:{stage}", f"{stage}: {error}") from error
        call = Call(
            stage=stage,
            model=model.chat.model,
            prompt=f"{prompt.name}@{prompt.version}",
            prompt_hash=prompt.hash,
            seed=model.chat.seed,
            reply=replace(
                reply, response_model=clean(reply.response_model), text=clean(reply.text)
            ),
        )
        calls.append(call)
        self._calls.append(call)
        return call.reply

    def outcome(self, generation: str, end: _End) -> Outcome:
        """Returns the outcome with all that was got until the end."""
        case = self._case
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
            path=(*self._steps(), end.step),
            label=end.label,
            answers={
                side: Answer(classification=answer, evaluation=self._evaluated.get(side))
                for side, answer in sorted(self._classified.items())
            },
            agreement=self._agreement,
            adjudication=self._adjudication,
            prompt_tokens=sum(reply.prompt_tokens for reply in sent),
            completion_tokens=sum(reply.completion_tokens for reply in sent),
            cost=math.fsum(priced) if len(priced) == len(sent) else None,
            started=self._started,
            finished=datetime.now(UTC),
        )
        return outcome.model_copy(update={"unread": self._unused_calls(outcome)})

    def _unused_calls(self, outcome: Outcome) -> tuple[Call, ...]:
        """Returns the calls whose replies no part of the outcome has, in order of their stages."""
        used = {call.reply.key for call in outcome.calls}
        unread = (call for call in self._calls if call.reply.key not in used)
        return tuple(sorted(unread, key=lambda call: call.stage))

    def _steps(self) -> Iterator[str]:
        """Yields the steps taken, in the order of the protocol and not of the answers."""
        candidate = self._settings.rules.stages == "evaluate"
        for side, classification in sorted(self._classified.items()):
            yield f"{CANDIDATE if candidate else classify_stage(side)}:{classification.format}"
        for side, evaluation in sorted(self._evaluated.items()):
            yield f"{evaluate_stage(side)}:{evaluation.verdict}:{evaluation.score}"
        if self._agreement is not None:
            yield f"compare:{_relate(self._label_of('A'), self._label_of('B'))}"
        if self._adjudication is not None:
            yield f"{ADJUDICATE}:{''.join(self._adjudication.order)}:{self._adjudication.choice}"
            if (confirmation := self._adjudication.confirmation) is not None:
                yield f"{CONFIRM}:{confirmation.verdict}:{confirmation.score}"


async def _both(a: Coroutine[Any, Any, None], b: Coroutine[Any, Any, None]) -> None:
    """Waits for both, so that a paid answer is kept if the other fails; raises the worst error."""
    results = await asyncio.gather(a, b, return_exceptions=True)
    errors = [result for result in results if result is not None]
    if errors:
        raise min(errors, key=_rank)


def _rank(error: BaseException) -> int:
    """Ranks errors: those that leave the case open, then failed calls, then unreadable replies."""
    if not isinstance(error, _CaseEnded):
        return 0
    return 1 if error.end.status is Status.FAILED else 2


def _grade(evaluation: Evaluation) -> str:
    return f"{evaluation.verdict} {evaluation.score}"


def _classify(
    label: Label, rationale: str, repairs: Sequence[str] = (), calls: tuple[Call, ...] = ()
) -> Classification:
    return Classification(
        label=label,
        rationale=rationale,
        format="repaired" if repairs else "strict",
        repairs=tuple(repairs),
        calls=calls,
    )


def _unparsable(rationale: str, problem: str, calls: tuple[Call, ...] = ()) -> Classification:
    return Classification(
        label=None, rationale=rationale, format="unparsable", problem=problem, calls=calls
    )
