"""All sites in this process, each with its own folder, ledger and stores."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.engines import coordinator, local
from tacit.engines.coordinator import Transport
from tacit.federated.held_out import kept_secret, mark_of, seeded_secret
from tacit.federated.messages import Broadcast, Update
from tacit.federated.responder import SEEDED, Responder
from tacit.federated.secure_aggregator import SecureAggregator, traces_of
from tacit.federated.secure_responder import SecureResponder
from tacit.federated.secure_terms import new_identity, public_identity
from tacit.federated.traces import Trace, check_complete, trace_of
from tacit.privacy.allowance import Allowance
from tacit.privacy.events import NonPrivate, Repeated, compose
from tacit.privacy.filters import admitting
from tacit.privacy.ledger import Entry, Ledger
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.privacy.statement import Statement, rounded_up
from tacit.study.folder import History, bind, bound_to, claim, name_of, writing
from tacit.study.program import INFERENCE, PHASES
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.study.statements import ABSENT, ADAPTIVE, ALONE, COUNTED, UNCOUNTED, assumptions
from tacit.study.transport import SecureTransport
from tacit.tables.scaling import Scaling


class LocalHost:
    """All sites in this process. Each uses its own folder only, with its ledger and its stores.

    is_kept: whether the folder stays, with ledgers that count. notes: added to every statement.
    """

    is_remote = False
    forgives = False

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        insecure_seed: int | None = None,
        *,
        is_kept: bool = True,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.setup, self.folder, self.is_kept, self.notes = setup, folder, is_kept, notes
        self.seeded = insecure_seed is not None
        self.key = secure_key() if insecure_seed is None else insecure_key(insecure_seed)
        claim(setup, folder)
        self.name = name_of(setup)
        self._check_ledgers()
        with writing(folder):
            for account in setup.accounts:
                self._own(account).mkdir(parents=True, exist_ok=True)
        self.ledgers = [self._ledger(account) for account in setup.accounts]
        self.allowances = [self._allowance(place, self.name) for place in range(len(setup.accounts))]
        self._marks: dict[str, str] = {}  # hashes of the kept secrets by which sites hold out records
        if setup.plan.evaluation:
            with writing(folder):
                held = self._secrets(insecure_seed)
            self.setup = setup.splitting(held)
            if insecure_seed is None:
                self._marks = {name: mark_of(secret) for name, secret in held.items()}
        self.responders: dict[str, list[Responder]] = {}  # by phase
        self.aggregators: dict[str, SecureAggregator] = {}  # of phases of inference, where sums are secure
        self.refusing: dict[str, str] = {}
        self._was_seeded: bool | None = None
        is_secure = setup.tolerance is not None
        self._identities = {account.name: new_identity() for account in setup.accounts if is_secure}

    def _check_ledgers(self) -> None:
        """Refuse ledgers that lack what the folder says was answered, before any is made or charged, or a record read.

        Also refuse a ledger that is gone, or that is not the one in study.json, even if no other trace is left.
        """
        traces, begun = self._traces(), bound_to(self.folder, "ledgers")
        for account in self.setup.accounts:
            if math.isfinite(account.epsilon):
                path = self._path(account)
                is_there = account.ledger is not None or path.exists()
                found = Ledger.open(path) if is_there else None
                check_complete(path, None if found is None else found.entries(), traces[account.name])
                if account.name in begun and (found is None or found.genesis != begun[account.name]):
                    what = "is gone" if found is None else "is not the one that this study began with"
                    raise ValueError(f"ledger={path} {what}; go back to a copy that has all entries")

    def _traces(self) -> dict[str, list[Trace]]:
        """Each account's answers, by the study's stores, progress files and history."""
        setup, names = self.setup, [account.name for account in self.setup.accounts]
        found: dict[str, list[Trace]] = {name: [] for name in names}
        for phase in PHASES:
            study, progress = f"{self.name}/{phase}", self.folder / f"{phase}.progress"
            answered = coordinator.answered_in(progress.read_bytes()) if progress.exists() else {}
            store = self.folder / f"{phase}.store"
            if setup.tolerance is not None:
                if answered and not store.exists():
                    raise ValueError(f"store={store} is gone, but {progress.name} has its sums; go back to a copy")
                for name, trace in traces_of(store, study, names).items() if store.exists() else ():
                    found[name].append(trace)
                continue
            for j, (round, taken) in answered.items():
                found[names[j]].append(Trace(study, frozenset([round]), taken, progress.name))
            for account in setup.accounts:
                trace = trace_of(self._own(account) / f"{phase}.store", account.name, [study])
                found[account.name] += [] if trace is None else [trace]
        history = History(self.folder / "history.json")
        first, *others = (f"{self.name}/{phase}" for phase in INFERENCE)  # `updates` counts those of all
        for name, count in history.last("updates").items():
            found[name].append(Trace(first, frozenset(), count, history.path.name, tuple(others)))
        return found

    def _allowance(self, place: int, study: str) -> Allowance | None:
        """The allowance of a study in an account's ledger."""
        ledger = self.ledgers[place]
        account = self.setup.accounts[place]
        return None if ledger is None else Allowance(ledger, study, account.epsilon, account.delta)

    def consents(self) -> dict[str, str | coordinator.Away]:
        pairs = zip(self.setup.accounts, self.allowances, strict=True)
        return {
            account.name: "" if allowance is None else allowance.objection(self.setup.least(place))
            for place, (account, allowance) in enumerate(pairs)
        }

    def leave_out(self, refusing: Mapping[str, str]) -> None:
        """Note the ledgers and secrets that the other accounts begin with, before any is charged."""
        self.refusing = dict(refusing)
        pairs = zip(self.setup.accounts, self.ledgers, strict=True)
        ledgers = {account.name: found.genesis for account, found in pairs if found and account.name not in refusing}
        marks = {name: mark for name, mark in self._marks.items() if name not in refusing}
        with writing(self.folder):
            bind(self.folder, ledgers=ledgers, held_out=marks)

    def last_rounds(self, phase: str) -> dict[int, int]:
        """Empty: the coordinator and the sites share one folder."""
        del phase
        return {}

    def _own(self, account: Site) -> Path:
        """The folder of an account."""
        top = self.folder if self.setup.plan.trusts_coordinator else self.folder / "sites"
        return top / account.name

    def _path(self, account: Site) -> Path:
        return account.ledger or self._own(account) / "ledger.sqlite"

    def _ledger(self, account: Site) -> Ledger | None:
        if math.isinf(account.epsilon):
            return None
        plan, path = self.setup.plan, self._path(account)
        if account.ledger is not None or path.exists():
            found = Ledger.open(path)
            if (found.unit, found.adjacency) != (plan.unit, plan.adjacency):
                raise ValueError(
                    f"ledger={path} is for each {found.unit} under {found.adjacency}; expected each {plan.unit} "
                    f"under {plan.adjacency}, or another ledger"
                )
            return found
        budget: dict[str, Any] = {"epsilon": account.epsilon, "delta": account.delta, "accountant": self._rule(account)}
        return Ledger.create(path, data_set=account.name, unit=plan.unit, adjacency=plan.adjacency, **budget)

    def _rule(self, account: Site) -> str:
        """The rule of a ledger made for this study: a filter that admits it, or else `pld`, as the plan is fixed."""
        least = self.setup.least(self.setup.accounts.index(account))
        return str(admitting(least, account.epsilon, account.delta, self.setup.plan.adjacency) or "pld")

    def _secrets(self, insecure_seed: int | None) -> dict[str, bytes]:
        """The secrets by which sites hold out records, each kept beside the ledger or else in the site's study folder.

        A trusted coordinator has one secret for all sites. A seeded study takes it from the seed, to be repeatable.
        """
        names = [site.name for site in self.setup.sites]
        if insecure_seed is not None:
            return dict.fromkeys(names, seeded_secret(insecure_seed))
        accounts = self.setup.accounts if len(self.setup.accounts) == len(names) else self.setup.accounts * len(names)
        folders = (self._own(account) if account.ledger is None else account.ledger.parent for account in accounts)
        begun = bound_to(self.folder, "held_out")
        return {name: kept_secret(folder, begun.get(name)) for name, folder in zip(names, folders, strict=True)}

    def open(self, phase: str, study: str, scaling: Scaling | None) -> Transport:
        """Sites for one phase. Each phase has its own name in ledgers and keys, and its own stores."""
        setup = self.setup
        if setup.tolerance is not None:
            return self._open_secure(phase, study, scaling)
        self.responders[phase] = [
            Responder(
                account.name,
                study,
                setup.algorithm(phase, place, scaling),
                setup.access(phase, place, scaling),
                self.key,
                self._allowance(place, study.rpartition("/")[0]),
                self._own(account) / f"{phase}.store",
                setup.most_updates(phase),
            )
            for place, account in enumerate(setup.accounts)
        ]
        return local.DirectTransport(self.responders[phase])

    def _open_secure(self, phase: str, study: str, scaling: Scaling | None) -> SecureTransport:
        """All sites as one respondent, of which the coordinator sees only sums."""
        setup = self.setup
        roster = {name: public_identity(key) for name, key in self._identities.items()}
        terms = setup.terms(phase, study, roster, scaling)
        accesses = [setup.own_access(phase, place, scaling) for place in range(len(setup.accounts))]
        responders = {
            account.name: SecureResponder(
                account.name, terms, access, self.key, allowance, self._identities[account.name]
            )
            for account, access, allowance in zip(setup.accounts, accesses, self.allowances, strict=True)
        }

        def ask(round: int, contents: Mapping[str, Any]) -> dict[str, Update | str]:
            found: dict[str, Update | str] = {}
            gone = setup.program.leaving(round, list(responders)) if phase in INFERENCE else {}
            for name, content in contents.items():
                if name in self.refusing:
                    found[name] = self.refusing[name]
                    continue
                if content["stage"] >= gone.get(name, math.inf):
                    found[name] = "it dropped out"
                    continue
                answer = responders[name](Broadcast(study, round, content))
                found[name] = answer if isinstance(answer, Update) else answer.reason
            return found

        aggregator = SecureAggregator(terms, setup.form(phase, scaling), ask, self.folder / f"{phase}.store")
        if phase in INFERENCE:
            self.aggregators[phase] = aggregator
        return SecureTransport(aggregator)

    def absent(self) -> dict[str, str]:
        latest = [self.aggregators[phase] for phase in INFERENCE if phase in self.aggregators]
        return latest[-1].absent if latest else {}

    def spent(self) -> dict[str, float]:
        """ε that each account has spent on this study, by its own ledger."""
        pairs = zip(self.setup.accounts, self.allowances, strict=True)
        return {account.name: math.inf if allowance is None else allowance.spent() for account, allowance in pairs}

    def totals(self) -> dict[str, tuple[float, float]]:
        pairs = zip(self.setup.accounts, self.ledgers, strict=True)
        return {account.name: (ledger.spent(), ledger.epsilon) for account, ledger in pairs if ledger is not None}

    def updates(self) -> dict[str, int]:
        """The number of inference updates that each site has made, or of sums that it is in."""
        found: Counter[str] = Counter()
        for phase in INFERENCE:
            if phase in self.aggregators:
                found.update(self.aggregators[phase].present)
            found.update({site.name: site.updates for site in self.responders.get(phase, [])})
        return dict(found)

    def dropped(self) -> int:
        """The number of updates of this process that were not finite, and so were left out."""
        return sum(site.dropped for phase in self.responders.values() for site in phase)

    def is_seeded(self) -> bool:
        """Whether this process, or an earlier one of this study, has a seed."""
        if self._was_seeded is None:
            self._was_seeded = any(_is_seeded(ledger) for ledger in self.ledgers if ledger is not None)
        return self.seeded or self._was_seeded

    def statements(self, present: Collection[str]) -> dict[str, Statement | str]:
        """The statement of each site for this study: the cost of its events in the ledger, which the plan fixed."""
        del present  # ledgers have all releases
        setup = self.setup
        found: dict[str, Statement | str] = {}
        for place, (account, allowance) in enumerate(zip(setup.accounts, self.allowances, strict=True)):
            own = [] if allowance is None else allowance.own()
            if allowance is not None and not own:
                found[account.name] = ABSENT.format(name=account.name)
                continue
            entries = () if allowance is None else allowance.entries()
            counts = Counter(entry.event for entry in own)
            event = NonPrivate() if allowance is None else compose(*(Repeated(e, n) for e, n in counts.items()))
            # An earlier process may have had a seed, even if this one has none.
            seeded = self.seeded or any(entry.note == SEEDED for entry in entries)
            if setup.tolerance is not None:  # its guarantee also rests on the noise of the others
                seeded = self.is_seeded()
            found[account.name] = Statement.of(
                event, account.delta, seeded=seeded, adjacency=setup.plan.adjacency, notes=self._notes(place, entries)
            )
        return found

    def _notes(self, place: int, entries: Sequence[Entry]) -> tuple[str, ...]:
        """The assumptions of an account's statement. entries: those of its ledger."""
        account, ledger = self.setup.accounts[place], self.ledgers[place]
        found = *assumptions(self.setup, place), *self.notes
        if ledger is None or (account.ledger is None and not self.is_kept):
            return (*found, UNCOUNTED)
        adaptive = ADAPTIVE.format(words=ledger.rule_words)
        if account.ledger is None and all(entry.study.startswith(f"{self.name}/") for entry in entries):
            return (*found, ALONE, adaptive)
        total = {"spent": rounded_up(entries[-1].spent), "budget": ledger.epsilon, "delta": ledger.delta}
        return (*found, COUNTED.format(name=ledger.path.name, rule=ledger.accountant, **total), adaptive)


def _is_seeded(ledger: Ledger) -> bool:
    return any(entry.note == SEEDED for entry in ledger.entries())
