"""A private run in the safe order, from its beginning or from where it broke off.

A checkpoint of step 0 is complete before the first ledger line. At the end: last step, final
checkpoint, model, the ledger's closing line, and then the secret keys are deleted
(docs/design.md, rule 4). A run that broke off takes the steps since its last checkpoint once more:
as they were where that can be proved, else with new noise as steps of their own (docs/design.md,
rule 9).
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dpft.errors import SaidElsewhere
from dpft.files import CHECKPOINTS, JOURNAL, LEDGER, private_path
from dpft.models.losses import per_example_losses
from dpft.parallel.shards import whole_reader
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.clipping.options import LossScale
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.frozen_state import check_same, digests_of
from dpft.privacy.ledger import ClipperChoice, Ledger, NoLedger, StepLog
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.randomness import Randomness, make_randomness, restore_randomness
from dpft.privacy.replay_log import JournaledLedger, KnownLedger, ReplayError
from dpft.training.checkpoint import (
    BoundRun,
    ResumePoint,
    check_promises,
    delete_generator_states,
    environment,
    find_resume_point,
    promises,
    read_history,
)
from dpft.training.loss_scale import AdaptiveLossScale, scaled
from dpft.training.session import (
    Session,
    Start,
    prepare_training_state,
    share_start,
    take_steps,
)
from dpft.training.training_state import TrainingState, moved_while_frozen, optimized_parameters

logger = logging.getLogger(__name__)


def train_privately(
    session: Session,
    plan: PrivacyPlan,
    privacy: DifferentialPrivacy,
    *,
    epsilon_after: Callable[[int], SpentEpsilon] | None,
    resume_point: ResumePoint | None = None,
) -> None:
    """Takes the plan's steps; leaves ledger, checkpoint and model in the run's folder.

    Where a step that is taken again does not come out as it was, all processes go back to the
    checkpoint and go on with new keys.

    ``epsilon_after`` is what a number of noisy steps costs, for progress and listeners; None: it
    is not shown. The first
    process alone has a resume point, where the run broke off.

    Raises:
        InputError: The folder has a ledger already and the run is not to go on.
        RunError: A weight is no longer finite, or what nothing moves is not what it was.
        StateError: The checkpoint is of another model.
    """
    run = PrivateRun(session=session, plan=plan, privacy=privacy, epsilon_after=epsilon_after)
    try:
        run.take_steps(resume_point)
        return
    except (ReplayError, SaidElsewhere) as error:
        if isinstance(error, SaidElsewhere) and error.kind != ReplayError.__name__:
            raise
        logger.warning("%s", error)
    broken_off = session.ranks.first(find_resume_point, session.folder)
    run.take_steps(broken_off, reseeds=True)


@dataclass(frozen=True, kw_only=True)
class PrivateRun:
    """A private run: what it is bound to, and how it starts: afresh, by a replay or reseeded."""

    session: Session
    plan: PrivacyPlan
    privacy: DifferentialPrivacy
    epsilon_after: Callable[[int], SpentEpsilon] | None

    @property
    def environment(self) -> dict[str, Any]:
        """What the bits of its sums depend on."""
        privacy, session = self.privacy, self.session
        settings = session.settings
        rates = (settings.peak_learning_rate, settings.weight_decay, settings.loss_scale)
        adapts = ("adaptive",) if settings.adaptive_loss_scale else ()
        return environment(
            session.training_set,
            engine=" ".join(choice.engine for choice in session.choices) or privacy.engine,
            precision=settings.precision,
            settings=(session.method, session.optimizer, session.scheduler, *rates, *adapts),
            ranks=session.ranks,
            shards=session.shards,
        )

    def take_steps(self, resume_point: ResumePoint | None, *, reseeds: bool = False) -> None:
        """Takes the steps that are left, saves the model, closes the ledger and deletes the keys.

        Redone steps have new noise, though they could be replayed, where it ``reseeds``.

        Raises:
            ReplayError: A redone step would have the same noise and another sum; said on the first
                process, and on the others ``SaidElsewhere``.
        """
        session, ranks = self.session, self.session.ranks
        with ExitStack() as held:
            opened = ranks.first(self._open, held, resume_point, reseeds=reseeds)
            journal, own_start = (None, None) if opened is None else opened
            training_state = prepare_training_state(session, self.plan.steps, resume_point)
            start = share_start(own_start, training_state, ranks)
            done, last_step, goes_on = start.done, start.last_step, start.goes_on
            noise = start.stream, self._history(start.history)
            seed, device = self.privacy.noise_seed, session.training_set.device
            randomness = restore_randomness(device, start.secrets, seed, rank=ranks.rank)
            log, loss_scale = scaled(session.settings, journal or NoLedger(), start.loss_scale)
            del opened, own_start, start  # They hold the keys of the step.
            digests, frozen = self._frozen(training_state, resume_point)
            moved = moved_while_frozen(training_state)
            session.method.begin_step(session.model, min(done, self.plan.steps - 1))
            engine = self._engine(log, loss_scale, randomness, done, last_step, moved, noise)

            def beside_state() -> dict[str, Any]:
                assert journal is not None and frozen is not None
                bound = self._bound_to(journal, frozen, loss_scale, noise[0])
                return {"run": bound, "generators": engine.secret_keys()}

            def close() -> None:
                assert journal is not None
                if isinstance(loss_scale, AdaptiveLossScale):
                    loss_scale.say_where_it_stands()
                journal.ledger.close(released=session.save_model())
                delete_generator_states(session.folder / CHECKPOINTS)

            after = self.epsilon_after

            def epsilon_of_ledger(_: int) -> SpentEpsilon:
                # of the ledger's steps: more than the weights', where some were taken again
                assert journal is not None and after is not None
                return after(self._as_one_stream(journal.ledger.streams))

            take_steps(
                session,
                engine,
                training_state,
                beside_state=beside_state,
                goes_on=goes_on,
                max_grad_norm=self.plan.one_max_grad_norm,
                epsilon_after=None if journal is None or after is None else epsilon_of_ledger,
                check_state=lambda: check_same(digests(), frozen or {}),
                before_first_draw=lambda: None if journal is None else journal.ledger.begin(),
                noise_history=engine.noise_history if self.plan.mechanism.has_streams else None,
            )
            ranks.first(close)

    @property
    def _clipper(self) -> tuple[ClipperChoice, ...] | None:
        """The results of the self-check, for the ledger; None if there are none."""
        return tuple(ClipperChoice(**choice.public()) for choice in self.session.choices) or None

    def _open(
        self, held: ExitStack, resume_point: ResumePoint | None, *, reseeds: bool
    ) -> tuple[JournaledLedger, Start]:
        """Opens ledger and journal; returns where steps are recorded, and where they start.

        Redone steps have the noise they had, as if nothing had happened, where that can be; else
        every one of them is one more step, in ledger and epsilon, and the run ends at the last step
        within its budget, unless it may overspend it.
        """
        path, plan = self.session.folder / LEDGER, self.plan
        clipper = self._clipper
        if resume_point is None:
            ledger = held.enter_context(Ledger(path, plan=plan, clipper=clipper))
            start = Start(done=0, last_step=self.plan.steps, secrets=self._fresh_keys(0, step=0))
            return self._journal(held, ledger, 0), start
        check_promises(resume_point, self.privacy)
        obstacle = "" if reseeds else self._obstacle_to_replay(resume_point)
        if obstacle:
            logger.warning("%s", obstacle)
        broken, checkpoint = resume_point.ledger, resume_point.checkpoint
        assert broken is not None
        ledger = held.enter_context(
            Ledger.reopen(path, broken, plan=plan, clipper=clipper, run_id=resume_point.run_id)
        )
        done = checkpoint.step
        if obstacle or reseeds:
            stands = ledger.steps
            journal = self._journal(held, ledger, stands)
            if broken.counted_steps > stands:
                at = min(stands, self.plan.steps - 1)
                journal.count_abandoned_step(self.plan.entry_at(at, stream=stands))
                stands = ledger.steps
            secrets = self._fresh_keys(stands, step=done)
            stream, history = stands, None
        else:
            # Of the ledger's steps: more than the weights', where some were taken again before.
            known = checkpoint.run.ledger
            stands = done if known is None else known.position
            journal = self._journal(held, ledger, stands)
            secrets = dict(checkpoint.read_keys().content)
            stream, history = checkpoint.run.stream, str(checkpoint.path.absolute())
        last = self._last_step(done, ledger.streams_before(stream), stands - stream)
        if obstacle or reseeds:
            logger.warning(
                "steps from %d on are taken with new noise: %d steps are in the ledger already,"
                " and the run ends with step %d of %d",
                done + 1, stands, last, self.plan.steps,
            )  # fmt: skip
        scale = checkpoint.run.loss_scale
        return journal, Start(
            done=done,
            last_step=last,
            secrets=secrets,
            goes_on=True,
            loss_scale=scale,
            stream=stream,
            history=history,
        )

    def _obstacle_to_replay(self, resume_point: ResumePoint) -> str:
        """Returns why redone steps cannot have the noise they had; nothing where they can."""
        checkpoint = resume_point.checkpoint
        if checkpoint.run.environment != self.environment:
            return "the run goes on in another environment than it broke off in"
        if not checkpoint.has_keys:
            return "the secret keys of the checkpoint are gone"
        if not checkpoint.has_history:
            return "the noise that the checkpoint's steps hang together with is gone"
        if not checkpoint.read_keys().original:
            return (
                "the folder is a copy of the run's, or was restored, and another may have its keys"
            )
        return ""

    def _last_step(self, done: int, before: Sequence[int], taken: int) -> int:
        """Returns the step to end at: what is spent and what is to come cost the plan's steps.

        The weights have ``done`` steps, each stream of noise that ended ``before``, and the one
        that goes on ``taken``.
        """
        if self.privacy.resume_overspend or not self.privacy.has_budget:
            return self.plan.steps
        mechanism = self.plan.mechanism
        left = mechanism.compositions((self.plan.steps,)) - mechanism.compositions(before)
        return min(self.plan.steps, done + max(0, mechanism.steps_within(left) - taken))

    def _as_one_stream(self, streams: Sequence[int]) -> int:
        """Returns how many steps of one stream cost what those of some do."""
        mechanism, planned = self.plan.mechanism, self.plan.steps
        cost = mechanism.compositions(streams)
        steps = mechanism.steps_within(cost)
        return min(steps, planned) if cost <= mechanism.compositions((planned,)) else steps

    def _history(self, checkpoint: str | None) -> Mapping[str, Tensor]:
        """Returns this rank's share of the noise that the next steps' hangs together with.

        Raises:
            StateError: A file of it is damaged.
            SaidElsewhere: So it is on another rank.
        """
        ranks = self.session.ranks
        with ranks.settled():
            if checkpoint is None or not self.plan.mechanism.has_streams:
                return {}
            return read_history(Path(checkpoint), ranks)

    def _fresh_keys(self, spent: int, *, step: int) -> dict[str, Any]:
        """Returns new keys for step ``step`` on, after ``spent`` noisy steps; secret."""
        device, seed = self.session.training_set.device, self.privacy.noise_seed
        return make_randomness(device, seed, step=step, after=spent).state(step)

    def _frozen(
        self, training_state: TrainingState, resume_point: ResumePoint | None
    ) -> tuple[Callable[[], dict[str, str]], Mapping[str, str] | None]:
        """Return a function that computes digests of what no update changes, and those of step 0.

        Only the first process has the digests of step 0. A resumed run reads them from its
        checkpoint.

        Raises:
            RunError: The model is not what it was then, or before it ran on records.
            SaidElsewhere: Another process failed.
        """
        session = self.session
        model, shards = session.model, session.shards
        trained = {p for p in model.parameters() if p.requires_grad}
        trained.update(optimized_parameters(training_state))
        moved = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p in trained}
        read = None if shards is None else whole_reader(shards)

        def digests() -> dict[str, str]:
            return digests_of(model, moved, read)

        def digests_at_step_0() -> Mapping[str, str]:
            if resume_point is None and session.state_at_start is not None:
                check_same(digests_of(model, read=read), session.state_at_start)
            now = digests()
            frozen = now if resume_point is None else resume_point.checkpoint.run.frozen
            assert frozen is not None  # Every checkpoint of a private run has it.
            check_same(now, frozen)
            return frozen

        return digests, session.ranks.first(digests_at_step_0)

    def _bound_to(
        self,
        journal: JournaledLedger,
        frozen: Mapping[str, str],
        loss_scale: LossScale,
        stream: int,
    ) -> BoundRun:
        """Returns what a checkpoint binds the run to when it goes on from there."""
        ledger = journal.ledger
        return BoundRun(
            plan=self.plan,
            clipper=self._clipper,
            environment=self.environment,
            promises=promises(self.privacy),
            run_id=ledger.run_id,
            frozen=frozen,
            ledger=KnownLedger(lines=ledger.lines, head=ledger.head, position=journal.position),
            stream=stream,
            loss_scale=loss_scale.state() if isinstance(loss_scale, AdaptiveLossScale) else None,
        )

    def _journal(self, held: ExitStack, ledger: Ledger, steps_done: int) -> JournaledLedger:
        """Returns the journal, which ``held`` closes; steps beyond ``steps_done`` are replayed."""
        path, environment = private_path(self.session.folder, JOURNAL), self.environment
        journal = JournaledLedger(ledger, path, environment=environment, steps_done=steps_done)
        return held.enter_context(journal)

    def _engine(
        self,
        log: StepLog,
        loss_scale: LossScale,
        randomness: Randomness,
        done: int,
        last_step: int,
        moved: Collection[str],
        noise: tuple[int, Mapping[str, Tensor]],
    ) -> PrivacyEngine:
        session, privacy = self.session, self.privacy
        stream, history = noise
        return PrivacyEngine(
            session.model,
            per_example_losses,
            plan=self.plan,
            ledger=log,
            randomness=randomness,
            steps_taken=done,
            last_step=last_step,
            stream=stream,
            history=history,
            options=replace(
                privacy.clipping_options(),
                loss_scale=loss_scale,
                autocast=session.settings.autocast_dtype,
            ),
            choices=session.choices,
            moved=moved,
            ranks=session.ranks,
            shards=session.shards,
        )
