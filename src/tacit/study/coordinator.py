"""The coordinator's part of a study: it asks, aggregates and reports, and sees no record."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.basics import durable
from tacit.basics.plain import finite
from tacit.engines import coordinator as rounds
from tacit.engines.coordinator import Progress
from tacit.engines.schedule import Step
from tacit.federated.evaluation import summary
from tacit.federated.pvi import PVI
from tacit.posterior import diagnostics
from tacit.posterior.posterior import Posterior
from tacit.privacy.statement import Statement
from tacit.study.answers import limits
from tacit.study.folder import History, claim, name_of
from tacit.study.host import Host, Snapshot, Watcher
from tacit.study.phases import conduct
from tacit.study.program import INFERENCE, PHASES
from tacit.study.scores import judged, scores
from tacit.study.setup import Setup
from tacit.study.transport import SecureTransport
from tacit.tables.scaling import Scaling
from tacit.tables.table import Table

ROUNDING = 1e-6  # the relative difference between machines in the ε of the same releases
FACTOR_GAP = 1e-4  # the relative gap allowed between q and the product of its factors: rounding in single precision


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    posterior: in the units of the data. sites: a row for each account (each site, or the coordinator if it is trusted):
    its ε of this study, how much of it is `spent`, and how much its ledger has spent in all (`ledger_spent`) of its
    `budget`, None where unknown. history: a row for each round. communications: how many messages sites sent.

    scores: on a public test set, if there is one. released: scores on held-out records, if they were paid for.
    statements: the text for each account, or a sentence where it released nothing. site_count: how many sites there
    are. name: the name under which the study was charged. tolerance: with secure sums, who has to be honest; each row
    then counts the sums that the site dropped out of.
    """

    posterior: Posterior
    sites: list[dict[str, Any]]
    history: list[dict[str, Any]]
    communications: int
    scores: dict[str, Any] | None = None
    released: dict[str, Any] | None = None
    statements: dict[str, str] = field(default_factory=dict)
    site_count: int = 0
    name: str = ""
    tolerance: str | None = None


def coordinate(
    setup: Setup,
    folder: Path,
    host: Host,
    *,
    test: Table | None = None,
    observe: Watcher = lambda phase, done, total, spent, progress: None,
    withdrawn: Callable[[], Collection[int]] = lambda: (),
    show: Callable[[Snapshot], None] | None = None,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> StudyResult:
    """Run all phases of a study, each from where it was left in `folder`. The coordinator sees no record.

    withdrawn: the numbers of respondents that have withdrawn by now. Their factors are divided out of q, and they are
    not asked any more. Their part of the locations and scales stays, once other sites use these to read their records.
    show: called with a snapshot after every step, before `observe`. at_least: how many sites must accept before any is
    charged; all by default. say: called with a sentence on sites that do not take part.
    """
    least = len(setup.sites) if at_least is None else at_least
    if not 1 <= least <= len(setup.sites):
        raise ValueError(f"at_least={least}; expected a number of sites from 1 to {len(setup.sites)}")
    return _Coordinator(setup, folder, host, test, observe, withdrawn, show, least, say).whole()


class _Coordinator:
    """The coordinator's work on a study in a folder. It sees only respondents' numbers, names and messages."""

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        host: Host,
        test: Table | None,
        observe: Watcher,
        withdrawn: Callable[[], Collection[int]],
        show: Callable[[Snapshot], None] | None,
        at_least: int,
        say: Callable[[str], None],
    ) -> None:
        self.setup, self.folder, self.host = setup, folder, host
        self.test, self.observe, self.withdrawn, self.show = test, observe, withdrawn, show
        self.at_least, self.say = at_least, say
        claim(setup, folder)
        self.name = name_of(setup)
        self.history = History(folder / "history.json")
        self.posterior: Posterior | None = None  # after the last step, if it is needed
        self.refusals: dict[str, str] = {}  # the last reason of each respondent
        self.refusing: dict[str, str] = {}  # accounts that did not accept the study, and why; they are not asked
        self.present: set[str] = set()  # accounts whose releases are in the result

    def _agree(self) -> None:
        """Ask all accounts whether they take part, before anything is charged. Those that refuse are left out.

        A study that has begun asks only those that refused, and only if the host `forgives`.
        """
        path = self.folder / "consents.json"
        known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        is_begun = any(self._path(phase).exists() for phase in PHASES)
        if not is_begun or (known and self.host.forgives):
            found = self.host.consents()
            refused = {name: why for name, why in found.items() if isinstance(why, str) and why}
            if is_begun:
                refused = {name: refused[name] for name in known if name in refused}
            else:
                self._check_enough(found)
            known = refused
            durable.write(path, json.dumps(known))
        self.refusing = known
        self.refusals |= known
        self.host.leave_out(known)
        if known:
            some = "; ".join(f"{name} does not: {why}" for name, why in list(known.items())[:5])
            count = len(self.setup.accounts)
            self.say(f"{count - len(known)} of {count} sites take part ({some})")

    def _check_enough(self, found: Mapping[str, str | rounds.Away]) -> None:
        setup = self.setup
        tolerance, each = setup.tolerance, len(setup.sites) if setup.plan.trusts_coordinator else 1
        least = self.at_least if tolerance is None else max(self.at_least, tolerance.threshold)
        accepted = each * sum(why == "" for why in found.values())
        if accepted >= least:
            return
        reasons = {name: why if isinstance(why, str) else why.reason for name, why in found.items() if why}
        words = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:5])
        raise ValueError(
            f"{accepted} of {len(self.setup.sites)} sites accept the study and at least {least} must, so nothing was "
            f"charged ({words})"
        )

    def _phase(
        self,
        phase: str,
        algorithm: Any,
        steps: list[Step] | None,
        scaling: Scaling | None,
        judge: Callable[[Progress, int], None] = lambda now, done: None,
    ) -> Progress:
        """Run one phase, from where it was left. steps: its schedule; None if sites answer at any time."""
        count, study, path = len(self.setup.respondents), f"{self.name}/{phase}", self._path(phase)
        transport, is_resumed = self.host.open(phase, study, scaling), path.exists()
        each = self.setup.program.rounds_in(phase)
        total = count * each if steps is None else len(steps)
        progress = self._resumed(phase, algorithm, total, is_free=steps is None)

        def after(now: Progress) -> None:
            done = now.communications if steps is None else now.position
            if self.host.is_remote and rounds.is_deserted(now, count):  # the step just made is not stored
                self._tell(phase, done - (steps is not None), total, now)
                raise rounds.Deserted
            judge(now, done)
            durable.write(path, now.to_bytes())
            self._tell(phase, done, total, now)

        more: dict[str, Any] = {"limits": limits(self.setup, phase, scaling), "progress": progress, "observe": after}
        if self.setup.tolerance is None and (phase in INFERENCE or phase == "evaluation" or not is_resumed):
            more["withdrawn"] = self.withdrawn  # a scaling that was found is part of the plan and stays
        if steps is None:
            done = rounds.run_free(algorithm, transport, count, each, study, **more)
        else:
            done = rounds.run(algorithm, transport, count, steps, study, **more)
        self._remember(done)
        self.present |= {self.setup.respondents[j].name for j, taken in done.taken.items() if taken}
        if isinstance(transport, SecureTransport):  # all sites answer as one respondent
            self.present |= {name for name, taken in transport.aggregator.present.items() if taken}
        self._check_learned(phase, done)
        return done

    def _resumed(self, phase: str, algorithm: Any, total: int, *, is_free: bool) -> Progress:
        """The progress of a phase so far, without accounts that refuse. Earlier refusals are forgiven where allowed."""
        count, path = len(self.setup.respondents), self._path(phase)
        if path.exists():
            progress = Progress.from_bytes(path.read_bytes(), algorithm, count)
        else:
            progress = Progress(algorithm.coordinator_init(count))
        progress.away.clear()  # absences of an earlier session
        if self.host.forgives or self.setup.tolerance is not None:
            progress.refused = {j: why for j, why in progress.refused.items() if why == rounds.WITHDRAWN}
        for j, respondent in enumerate(self.setup.respondents):
            if respondent.name in self.refusing:
                progress.refused.setdefault(j, self.refusing[respondent.name])
        lasts = {j: last for j, last in self.host.last_rounds(phase).items() if j not in progress.refused}
        rounds.catch_up(progress, lasts, total, is_free=is_free)
        return progress

    def _check_learned(self, phase: str, done: Progress) -> None:
        """Refuse to go on if sums were lost, or if no site answered."""
        is_secure = self.setup.tolerance is not None
        if is_secure and done.refused:
            words = f"sums of two rounds in a row were lost ({done.refused[0]})"
            raise ValueError(f"{words}; run the same command again to resume")
        if (self.host.is_remote or is_secure) and not done.communications:  # nothing was learned
            self._path(phase).unlink(missing_ok=True)
            reasons = done.missed | done.away | done.refused
            words = "; ".join(f"{self.setup.respondents[j].name}: {why}" for j, why in list(reasons.items())[:5])
            raise ValueError(f"{'no sum was made' if is_secure else 'no site took part'} ({words})")

    def _tell(self, phase: str, done: int, total: int, now: Progress) -> None:
        """Call `show` with a snapshot, then `observe`."""
        spent = self.host.spent()
        if self.show is not None:
            sites = self._sites(now, spent)
            self.show(Snapshot(phase, done, total, sites, self.posterior, self.history.rows, self.host.is_seeded()))
        self.observe(phase, done, total, spent, now)

    def _sites(self, now: Progress, spent: dict[str, float]) -> list[dict[str, Any]]:
        """A row of `Snapshot` for each account."""
        updates, rows, absent, totals = self.host.updates(), [], self.host.absent(), self.host.totals()
        for j, account in enumerate(self.setup.accounts):
            states = {"left out": now.refused, "away": now.away, "refused": now.missed}
            if self.setup.tolerance is not None:
                states = {"away": {j: absent[account.name]} if account.name in absent else {}}
                states["left out"] = {j: self.refusing[account.name]} if account.name in self.refusing else {}
            state = next((state for state, reasons in states.items() if j in reasons), "here")
            row = {"name": account.name, "epsilon": finite(account.epsilon), "updates": updates.get(account.name, 0)}
            row |= {"spent": finite(spent.get(account.name, math.nan)), "state": state}
            rows.append(row | _of_ledger(totals.get(account.name)) | {"reason": states.get(state, {}).get(j, "")})
        return rows

    def _path(self, phase: str) -> Path:
        return self.folder / f"{phase}.progress"

    def _remember(self, done: Progress) -> None:
        reasons = done.missed | done.away | done.refused
        self.refusals |= {self.setup.respondents[j].name: why for j, why in reasons.items()}

    def whole(self) -> StudyResult:
        """Run all phases, each from where it was left."""
        self._agree()
        setup, ends = self.setup, dict[str, tuple[Any, Progress]]()

        def play(phase: str, algorithm: Any, scaling: Scaling | None) -> Any:
            is_free = phase in INFERENCE and setup.plan.schedule == "asynchronous" and self.host.is_remote
            judge = self._judge(phase, algorithm, scaling) if phase in INFERENCE else lambda now, done: None
            done = self._phase(phase, algorithm, None if is_free else setup.steps(phase), scaling, judge)
            ends[phase] = algorithm, done
            return done.state

        conducted = conduct(setup, play)
        (algorithm, done), found = ends[setup.last_phase], conducted.found
        released = None
        if conducted.scores is not None:
            released = summary(np.asarray(conducted.scores).sum(axis=0), setup.evaluation_noise())
            if setup.tolerance is None and rounds.let_go(algorithm, done, self.withdrawn()):
                done.state, _ = rounds.aggregate(algorithm, done.state)
                durable.write(self._path(setup.last_phase), done.to_bytes())
                self._remember(done)
                found = algorithm.posterior(done.state)
        return self._found(done, found, conducted.scaling, released)

    def _judge(self, phase: str, algorithm: Any, scaling: Scaling | None) -> Callable[[Progress, int], None]:
        """What is noted after each step of a phase of inference."""
        setup = self.setup
        before = setup.program.rounds_in("inference") if phase == "refinement" else 0

        def judge(now: Progress, done: int) -> None:
            if done == 0:
                return
            assert scaling is not None
            state, _ = rounds.aggregate(algorithm, now.state)
            row = {
                "round": before + done,
                "communications": self._messages(now),
                "factor_gap": _gap(algorithm, state),
                **self._told(before + done),
            }
            if self.test is not None or self.show is not None:
                self.posterior = setup.posterior(algorithm.posterior(state), scaling)
            if self.test is not None:
                assert self.posterior is not None
                row |= scores(self.posterior, self.test)
            self.history.add(row)

        return judge

    def _found(self, done: Progress, found: Any, scaling: Scaling, released: dict[str, Any] | None) -> StudyResult:
        setup, stated = self.setup, self.host.statements(self.present)
        statements = {name: one for name, one in stated.items() if isinstance(one, Statement)}
        others = {name: one for name, one in stated.items() if isinstance(one, str)}
        spent, updates, totals = self._spent(statements), self.host.updates(), self.host.totals()
        posterior = setup.posterior(found, scaling, _words(statements, others))
        rows = [
            {
                "name": account.name,
                "epsilon": finite(account.epsilon),
                "delta": account.delta,
                "spent": finite(spent[account.name]),
                **_of_ledger(totals.get(account.name)),
                "updates": updates.get(account.name, 0),
                "refused": self.refusals.get(account.name),
                "is_present": account.name in self.present,
                "slots": slots,
            }
            for account, slots in zip(setup.accounts, setup.slots, strict=True)
        ]
        if setup.tolerance is not None:
            made = done.taken.get(0, 0)
            for row in rows:
                row["dropped"] = made - row["updates"]
        tested = None if self.test is None else scores(posterior, self.test) | judged(posterior, self.test)
        messages = self._messages(done)
        texts = {name: statement.text() for name, statement in statements.items()} | others
        tolerance = None if setup.tolerance is None else setup.tolerance.words
        more = {"site_count": len(setup.sites), "name": self.name, "tolerance": tolerance}
        return StudyResult(posterior, rows, self.history.rows, messages, tested, released, texts, **more)

    def _spent(self, statements: Mapping[str, Statement]) -> dict[str, float]:
        """ε that each account has spent on this study: 0 where nothing was released.

        For remote sites it is at least the ε of their statements: a site that is away may have released more than it
        told.
        """
        found = self.host.spent()
        for name in [account.name for account in self.setup.accounts]:
            told = found.get(name, math.nan)
            if name not in statements:
                found[name] = 0.0
            elif self.host.is_remote and not told >= statements[name].epsilon * (1 - ROUNDING):
                found[name] = statements[name].epsilon
        return found

    def _messages(self, now: Progress) -> int:
        """The number of sites' updates in the posterior."""
        if self.setup.tolerance is not None:
            return sum(self.host.updates().values())
        return self.setup.messages(now.communications)

    def _told(self, done: int) -> dict[str, Any]:
        """Changes at the sites up to a round: their numbers of updates, and the ε of the study that they spent.

        The ε is left out for remote sites, which tell it to the coordinator alone.
        """
        told: dict[str, Any] = {"updates": self.history.changes("updates", done, self.host.updates())}
        if not self.host.is_remote:
            spent = {name: finite(spent) for name, spent in self.host.spent().items()}
            told["spent"] = self.history.changes("spent", done, spent)
        return told


def _words(statements: dict[str, Statement], others: Mapping[str, str]) -> dict[str, Any]:
    """The posterior's statement: the weakest site's, all others if there are more, and a line for each without one."""
    if not statements:
        return {}
    worst = max(statements.values(), key=lambda statement: statement.epsilon)
    if len(statements) == 1 and not others:
        return {"statement": worst.to_dict(), "statement_text": worst.text()}
    sites = {name: statement.to_dict() for name, statement in statements.items()}
    texts = {name: statement.text() for name, statement in statements.items()}
    texts |= {name: f"{words}\n" for name, words in others.items()}
    text = "\n".join(f"{name}\n{'-' * len(name)}\n{found}" for name, found in texts.items())
    return {"statement": worst.to_dict() | {"sites": sites, "others": dict(others)}, "statement_text": text}


def _of_ledger(total: tuple[float, float] | None) -> dict[str, float | None]:
    """Columns of a row: the ε that a ledger has spent over all studies, and its budget."""
    spent, budget = (math.nan, math.nan) if total is None else total
    return {"ledger_spent": finite(spent), "budget": finite(budget)}


def _gap(algorithm: Any, state: Any) -> float:
    """The gap between q and the product of its factors; more than rounding is a bug."""
    if not isinstance(algorithm, PVI):
        return 0.0
    product = jax.tree.map(lambda leaf: np.asarray(leaf, float).sum(axis=0), state.factors)
    gap = diagnostics.factor_gap(state.q, [algorithm.prior, state.refined, state.own, product])
    if gap > FACTOR_GAP:
        raise RuntimeError(f"q is not the product of its factors (gap {gap:.2g}): this is a bug in tacit")
    return gap
