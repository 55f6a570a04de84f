"""A private run in the safe order, from its beginning or from where it broke off.

A checkpoint of step 0 is complete before the first ledger line. At the end: last step, final
checkpoint, model, the ledger's closing line, and then the secret keys are deleted
(docs/design.md, rule 4). A run that broke off takes the steps since its last checkpoint once more:
as they were where that can be proved, else with new noise as steps of their own (docs/design.md,
rule 9).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpft.fused_head import loss_head_of
from dpft.parallel.gathering import whole_reader
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.clipping.choices import LossScale
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.frozen_state import ReleasedState, check_same, digests_of
from dpft.privacy.journal import JournaledLedger, ReplayError
from dpft.privacy.ledger import Ledger, LedgerRecord
from dpft.privacy.plan import PrivacyPlan, write_plan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.randomness import Randomness, make_randomness, restore_randomness
from dpft.privacy.step_log import StepLog
from dpft.run_folder import CHECKPOINTS, JOURNAL, LEDGER, private_path
from dpft.training.checkpoint import delete_generator_states
from dpft.training.compiling import compilation_of
from dpft.training.loss_scale import LOSS_SCALE, AdaptiveLossScale, scale_record, scaled
from dpft.training.recipe import prepare_training_state
from dpft.training.replicas import Start, share_start
from dpft.training.resume import (
    ResumePoint,
    check_promises,
    environment,
    find_resume_point,
    frozen_digests,
    promises,
)
from dpft.training.session import Session, take_steps
from dpft.training.training_state import (
    TrainingState,
    moved_while_frozen,
    optimized_parameters,
)
from dpft.training.witnessing import HeadWitness

logger = logging.getLogger(__name__)


def train_privately(
    session: Session,
    plan: PrivacyPlan,
    privacy: DifferentialPrivacy,
    *,
    epsilon_after: Callable[[int], SpentEpsilon],
    resume_point: ResumePoint | None = None,
) -> None:
    """Takes the plan's steps; leaves ledger, checkpoint and model in the run's folder.

    Args:
        session: Everything the run trains with.
        plan: The mechanism that was accounted for.
        privacy: How it is carried out.
        epsilon_after: What a number of noisy steps costs, for progress and listeners.
        resume_point: Where the run broke off, to go on from there; None: it begins.

    Raises:
        InputError: The folder has a ledger already and the run is not to go on.
        RunError: A weight is no longer finite, or what nothing moves is not what it was.
        StateError: The checkpoint is of another model.
    """
    run = PrivateRun(session=session, plan=plan, privacy=privacy, epsilon_after=epsilon_after)
    if resume_point is None:
        run.begin()
        return
    check_promises(resume_point, privacy)
    try:
        run.replay(resume_point)
    except ReplayError as error:
        logger.warning("%s", error)
        run.reseed(find_resume_point(session.folder))


@dataclass(frozen=True, kw_only=True)
class PrivateRun:
    """A private run: what it is bound to, and how it starts: afresh, by a replay or reseeded."""

    session: Session
    plan: PrivacyPlan
    privacy: DifferentialPrivacy
    epsilon_after: Callable[[int], SpentEpsilon]

    @property
    def environment(self) -> dict[str, Any]:
        """What the bits of its sums depend on."""
        privacy, session = self.privacy, self.session
        settings = session.settings
        rates = (settings.peak_learning_rate, settings.weight_decay, settings.loss_scale)
        adapts = ("adaptive",) if settings.adaptive_loss_scale else ()
        return environment(
            session.training_set,
            engine=privacy.engine,
            memory_mb=privacy.clipper_memory_mb,
            settings=(session.method, session.optimizer, session.scheduler, *rates, *adapts),
            ranks=session.ranks,
            shards=session.shards,
            fused_head=loss_head_of(session.model) is not None,
        )

    def begin(self) -> None:
        """Takes every step, from the first."""
        handover = self.session.handover
        run_id = None if handover is None else handover.run_id
        path, plan = self.session.folder / LEDGER, write_plan(self.plan)
        with Ledger(path, plan=plan, run_id=run_id) as ledger:
            randomness = self._fresh_randomness(0, step=0)
            self._train(ledger, None, randomness, journaled=0, last_step=self.plan.steps)

    def replay(self, resume_point: ResumePoint) -> None:
        """Goes on as if nothing had happened: redone steps have the noise they had.

        Raises:
            ReplayError: A redone step would have the same noise and another sum.
        """
        broken = resume_point.ledger
        if resume_point.checkpoint.run["environment"] != self.environment:
            raise ReplayError("the run goes on in another environment than it broke off in")
        if broken is None or not resume_point.checkpoint.has_keys:
            raise ReplayError("the secret keys of the checkpoint are gone")
        keys = resume_point.checkpoint.read_keys()
        if not keys.original:
            raise ReplayError(
                "the folder is a copy of the run's, or was restored, and another may have its keys"
            )
        device = self.session.training_set.device
        randomness = restore_randomness(device, keys.content, self.privacy.noise_seed)
        del keys  # Else a forgotten key would be kept as long as the run goes on.
        # Of the ledger's steps: more than the weights', where some were taken again before.
        done = resume_point.checkpoint.step
        stood = int(resume_point.checkpoint.run["ledger"].get("position", done))
        last = self._last_step(done, stood)
        with self._reopened(resume_point, broken) as ledger:
            self._train(ledger, resume_point, randomness, journaled=stood, last_step=last)

    def reseed(self, resume_point: ResumePoint) -> None:
        """Goes on with new noise: every redone step is one more step, in ledger and epsilon.

        The run ends at the last step within its budget, unless it may overspend it.
        """
        assert resume_point.ledger is not None
        done = resume_point.checkpoint.step
        with self._reopened(resume_point, resume_point.ledger) as ledger:
            if resume_point.ledger.counted_steps > ledger.steps:
                at = min(ledger.steps, self.plan.steps - 1)
                with self._journal(ledger, ledger.steps) as journal:
                    journal.count_abandoned_step(self.plan.mechanism_at(at))
            last = self._last_step(done, ledger.steps)
            logger.warning(
                "steps from %d on are taken with new noise: %d steps are in the ledger already,"
                " and the run ends with step %d of %d",
                done + 1, ledger.steps, last, self.plan.steps,
            )  # fmt: skip
            randomness = self._fresh_randomness(ledger.steps, step=done)
            self._train(ledger, resume_point, randomness, journaled=ledger.steps, last_step=last)

    def _reopened(self, resume_point: ResumePoint, broken: LedgerRecord) -> Ledger:
        path, plan = self.session.folder / LEDGER, write_plan(self.plan)
        return Ledger.reopen(path, broken, plan=plan, run_id=resume_point.run_id)

    def _last_step(self, done: int, spent: int) -> int:
        """Returns the step to end at: what is spent and what is to come cost the plan's steps."""
        if self.privacy.resume_overspend or not self.privacy.has_budget:
            return self.plan.steps
        return min(self.plan.steps, done + max(0, self.plan.steps - spent))

    def _fresh_randomness(self, spent: int, *, step: int) -> Randomness:
        """Returns sources with new keys for step ``step`` on, after ``spent`` noisy steps."""
        device = self.session.training_set.device
        return make_randomness(device, self.privacy.noise_seed, step=step, after=spent)

    def _train(
        self,
        ledger: Ledger,
        resume_point: ResumePoint | None,
        randomness: Randomness,
        *,
        journaled: int,
        last_step: int,
    ) -> None:
        """Takes the steps that are left, saves the model, closes the ledger and deletes the keys.

        Args:
            ledger: New or reopened.
            resume_point: Where the run broke off; None: it begins.
            randomness: Where sampling, noise and dropout come from.
            journaled: Steps of the ledger that stand; those beyond it are replayed.
            last_step: The plan's step to end at.
        """
        session = self._witnessed(ledger)
        done = 0 if resume_point is None else resume_point.checkpoint.step
        training_state = prepare_training_state(session, self.plan.steps, resume_point)
        start = Start(
            done=done,
            last_step=last_step,
            secrets=randomness.state(done),
            goes_on=resume_point is not None,
            loss_scale=None
            if resume_point is None
            else resume_point.checkpoint.run.get(LOSS_SCALE),
        )
        share_start(start, training_state, session.ranks)
        scale_state = start.loss_scale
        del start  # It holds the keys of the step.
        released, frozen = self._frozen(training_state, resume_point)
        moved = moved_while_frozen(training_state)
        session.method.begin_step(session.model, min(done, self.plan.steps - 1))
        with self._journal(ledger, journaled) as journal:
            log, loss_scale = scaled(session.settings, journal, scale_state)
            engine = self._engine(log, loss_scale, randomness, done, last_step, moved)
            take_steps(
                session,
                engine,
                training_state,
                beside_state=lambda: {
                    "run": self._bound_to(ledger, journal, frozen) | scale_record(loss_scale),
                    "generators": engine.secret_keys(),
                },
                goes_on=resume_point is not None,
                max_grad_norm=self.plan.one_max_grad_norm,
                # of the ledger's steps: more than the weights', where some were taken again
                epsilon_after=lambda _: self.epsilon_after(ledger.steps),
                check_state=lambda: check_same(released.digests(), frozen),
                before_first_draw=ledger.begin,
            )
        if isinstance(loss_scale, AdaptiveLossScale):
            loss_scale.say_where_it_stands()
        ledger.close(released=session.save_model())
        delete_generator_states(session.folder / CHECKPOINTS)

    def _frozen(
        self, training_state: TrainingState, resume_point: ResumePoint | None
    ) -> tuple[ReleasedState, Mapping[str, str]]:
        """Returns what of the model nothing moves, and its digests before the first step.

        Where the run goes on, a checkpoint of the first process says them.

        Raises:
            RunError: The model is not what it was then, or before it ran on records.
            SaidElsewhere: Another process failed.
        """
        session = self.session
        model, shards = session.model, session.shards
        moved = [p for p in model.parameters() if p.requires_grad]
        moved += optimized_parameters(training_state)
        read = None if shards is None else whole_reader(shards)
        released = ReleasedState(model, moved, read)
        with session.ranks.settled():
            if resume_point is None and session.state_at_start is not None:
                check_same(digests_of(model, read=read), session.state_at_start)
            now = released.digests()
            frozen = now if resume_point is None else frozen_digests(resume_point)
            check_same(now, frozen)
        return released, frozen

    def _bound_to(
        self, ledger: Ledger, journal: JournaledLedger, frozen: Mapping[str, str]
    ) -> dict[str, Any]:
        """Returns what a checkpoint binds the run to when it goes on from there, ready for JSON."""
        return {
            "plan": write_plan(self.plan),
            "environment": self.environment,
            "promises": promises(self.privacy),
            "run_id": ledger.run_id,
            "frozen": dict(frozen),
            "ledger": {
                "lines": ledger.lines,
                "head": ledger.head,
                "position": journal.position,
            },
        }

    def _witnessed(self, ledger: Ledger) -> Session:
        """Returns the session, the run's witness among its listeners if it has one."""
        session = self.session
        if session.handover is None:
            return session
        every = session.settings.checkpoint_every
        witness = HeadWitness(session.handover, ledger, every=every)
        return replace(session, listeners=(*session.listeners, witness))

    def _journal(self, ledger: Ledger, steps_done: int) -> JournaledLedger:
        return JournaledLedger(
            ledger,
            private_path(self.session.folder, JOURNAL),
            environment=self.environment,
            steps_done=steps_done,
        )

    def _engine(
        self,
        log: StepLog,
        loss_scale: LossScale,
        randomness: Randomness,
        done: int,
        last_step: int,
        moved: Collection[str],
    ) -> PrivacyEngine:
        return PrivacyEngine(
            self.session.model,
            plan=self.plan,
            ledger=log,
            randomness=randomness,
            steps_taken=done,
            last_step=last_step,
            engine=self.privacy.engine,
            groups=self.privacy.groups,
            memory_mb=self.privacy.clipper_memory_mb,
            loss_scale=loss_scale,
            compilation=compilation_of(self.session.training_set),
            ranks=self.session.ranks,
            shards=self.session.shards,
            moved=moved,
        )
