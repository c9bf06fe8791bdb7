"""A dask scheduler that runs tasks in random order and repeats them, also late or concurrently with successors."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dask._task_spec import convert_legacy_graph
from dask.core import flatten
from dask.local import nested_get


class Repeating:
    """Runs of graphs, each task at least once; `alone` is a word in the keys of tasks that never overlap."""

    def __init__(self, seed: int, after_last: bool = True, alone: str | None = None) -> None:
        self._random, self._after_last, self._alone = random.Random(seed), after_last, alone
        self._late: list[Callable[[], Any]] = []
        self.runs = 0

    def get(self) -> Callable[..., Any]:
        """Return the function that dask's option `scheduler` accepts."""
        # A bound method would be mistaken for a client's.
        return lambda graph, keys, **options: self._compute(graph, keys)

    def run_late(self) -> list[BaseException]:
        """Run tasks of all graphs again, after the call that computed them has returned; return their errors."""
        errors: list[BaseException] = []
        for task in self._random.sample(self._late, len(self._late)):
            try:
                task()
            except Exception as error:
                errors.append(error)
        return errors

    def _compute(self, graph: Any, keys: Any) -> Any:
        tasks = convert_legacy_graph(dict(graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else graph))
        results: dict[Any, Any] = {}

        def run(key: Any) -> Any:
            self.runs += 1
            return tasks[key]({name: results[name] for name in tasks[key].dependencies})

        order = sorted(tasks, key=str)
        while len(results) < len(tasks):
            ready = [key for key in order if key not in results and tasks[key].dependencies <= results.keys()]
            key = self._random.choice(ready)
            if self._random.random() < 0.3 and (self._alone is None or self._alone not in str(key)):
                with ThreadPoolExecutor(2) as threads:
                    both = [threads.submit(run, key) for _ in range(2)]
                    results[key] = self._random.choice([each.result() for each in both])
            else:
                results[key] = run(key)
            # The result of a task that runs again takes the place of the first one.
            for again in self._random.sample(list(results), min(2, len(results))):
                if len(results) == len(tasks) and not self._after_last:
                    break
                results[again] = run(again)
        for again in self._random.sample(order, len(order) if self._after_last else 0):
            results[again] = run(again)
        self._late += [lambda key=key: run(key) for key in order]  # type: ignore[misc]
        wanted = keys if isinstance(keys, list) else [keys]
        found = nested_get(wanted, {key: results[key] for key in flatten(wanted)})
        return found if isinstance(keys, list) else found[0]
