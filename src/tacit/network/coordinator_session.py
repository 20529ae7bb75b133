"""The coordinator's session: what one call of `serve` does while enough sites are there."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tacit
from tacit.basics import durable
from tacit.engines.coordinator import Deserted
from tacit.files.study_file import StudyFile
from tacit.network.agreement import Agreement
from tacit.network.channel import Post
from tacit.network.remote import Remote
from tacit.network.status import Status, read_status, withdrawn
from tacit.study.coordinator import coordinate
from tacit.study.host import Snapshot
from tacit.study.setup import Setup


@dataclass(frozen=True)
class CoordinatorSession:
    """One session of a study, from where the last one ended.

    at_least: how many sites must accept the study before any is charged; all by default. forgives: sites that refused
    in an earlier session are asked again. is_watched: keep `snapshot.json` too. watch: called with the status when
    it changes. say: called with a sentence on sites that do not take part.
    """

    study: StudyFile
    agreement: Agreement
    out: Path
    at_least: int | None = None
    forgives: bool = False
    is_watched: bool = False
    watch: Callable[[Mapping[str, Any]], None] = lambda status: None
    say: Callable[[str], None] = lambda words: None

    def hold(self, post: Post) -> None:
        """Run until the study is finished. Raises Deserted if no site is connected any more."""
        sites, test = self.study.outline()
        setup = self.agreement.setup(sites[0].table, model=self.study.plan.model)
        status = Status(self.out, self.study.plan.name, setup)
        status.log("session", sites=post.sites)
        try:
            self._coordinate(setup, test, status, post)
        except Deserted:
            status.log("deserted")
            raise
        except ValueError as error:
            status.fail(str(error))
            raise ValueError(f"the study cannot go on: {error}") from None

    def _coordinate(self, setup: Setup, test: Any, status: Status, post: Post) -> None:
        from tacit.report import dashboard, studied

        host = Remote(setup, post, self.out / "notes.json", forgives=self.forgives)

        def observe(phase: str, done: int, total: int, spent: dict[str, float], progress: Any) -> None:
            names = host.names
            away = {names[j]: why for j, why in {**progress.missed, **progress.away}.items()}
            left = {names[j]: why for j, why in progress.refused.items()}
            if setup.tolerance is not None:  # all sites are one to the engine
                away, left = host.absent(), {}
            status.show(host, phase, done, total, away, left)
            self.watch(read_status(self.out))

        def show(snapshot: Snapshot) -> None:
            durable.write(self.out / "snapshot.json", json.dumps(dashboard.plain(snapshot)))

        done = coordinate(
            setup,
            self.out,
            host,
            test=test,
            observe=observe,
            withdrawn=lambda: withdrawn(self.out, host.names),
            show=show if self.is_watched else None,
            at_least=self.at_least,
            say=self.say,
        )
        about = {
            "version": tacit.__version__,
            "name": self.study.plan.name,
            "model": self.study.settings.model,
            "target": self.study.settings.target,
            "data": f"{len(setup.accounts)} sites over a network",
        }
        studied.write(self.out, done, about, 0 if test is None else len(test.target))
        status.log("finished")
