"""Our server rules in the place of Flower's `FedAvg`, in an app that is somebody else's.

    from fedsofim.federation import DPFedSOFIM

    strategy = DPFedSOFIM(lr=0.8, rho=0.5, beta=0.9, fraction_evaluate=0.0)
    result = strategy.start(grid, initial_arrays, num_rounds=20)

The step is taken on what the app's own clients send under Flower's default names. **Privacy is then
the clients' business**: the server's step reads what was sent already and spends nothing, but it
hides nothing either. Clip and noise on the client, by Opacus or by Flower's own mods, and account
for it there. Our own clients, with their ledgers, go with a `Quorum` instead.
"""

from collections.abc import Iterable
from logging import INFO, WARNING
from typing import Any, Literal

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore import log

from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.strategies.rule import Rule, ServerState, start, step

Sends = Literal["parameters", "delta", "gradient"]
SENDS = ("parameters", "delta", "gradient")


class ServerSide(FedAvg):
    r"""A server rule of ours over Flower's own messages, records and sampling.

    With the clients' replies $r_i$ to $\theta_t$, and weights $w_i$ from `num-examples`, the rule
    gets $G = \sum_i w_i (\theta_t - r_i)$ if clients send `parameters`, as they do for `FedAvg`;
    $G = -\sum_i w_i r_i$ if they send a `delta`, $r_i = \theta_i - \theta_t$; and
    $G = \sum_i w_i r_i$ if they send a `gradient`. With DP-FedGD and a rate of 1 the first is
    `FedAvg` itself.

    All floating-point arrays together are the rule's $\theta$. Arrays of whole numbers, such as
    counters, are averaged and rounded where clients send parameters, and else left as they are; a
    delta or a gradient may leave out arrays, which then do not move. Running means and variances
    (BatchNorm) look like parameters, and would be stepped like them: send deltas without them.

    Args:
        rule: what to do with an aggregate; one whose clients need nothing but the parameters.
        sends: what clients reply with.
        **flower: as for Flower's `FedAvg`.
    """

    def __init__(self, rule: Rule, *, sends: Sends = "parameters", **flower: Any) -> None:
        require(sends in SENDS, f"sends={sends}: choose one of {', '.join(SENDS)}")
        super().__init__(**flower)
        self.rule, self.sends = rule, sends
        self._sent: dict[str, Array] = {}
        self._state: ServerState | None = None
        self._rounds = 1

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **more: Any
    ) -> Result:
        """As Flower's; the rule begins anew, and its rate falls over these rounds."""
        self._state, self._rounds = None, num_rounds
        return super().start(grid, initial_arrays, num_rounds, *args, **more)

    def summary(self) -> None:
        """Say in the log what begins, and what it does not do."""
        log(INFO, "\t├──> %s; clients send: %s", self.rule, self.sends)
        log(INFO, "\t├──> The step costs no privacy and gives none: that is up to the clients")
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower's, and remember what is sent."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies as Flower does, and let the rule make a step of it."""
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        came = {name: array.numpy() for name, array in mean.items()}
        self._check(came)
        arrays = self._stepped(came)
        if arrays is None:
            log(WARNING, "Round %d: replies are not finite; the model stays", server_round)
            return None, metrics
        return ArrayRecord({name: FlowerArray(array) for name, array in arrays.items()}), metrics

    def _check(self, came: dict[str, Array]) -> None:
        """Refuse replies that are not about the model that was sent."""
        strange = came.keys() - self._sent.keys()
        missing = self._sent.keys() - came.keys() if self.sends == "parameters" else set()
        if strange or missing:
            raise AggregationError(f"replies have other arrays: {sorted(strange | missing)}")
        for name, array in came.items():
            if array.shape != self._sent[name].shape:
                raise AggregationError(f"{name}: {array.shape} came, not {self._sent[name].shape}")

    def _stepped(self, came: dict[str, Array]) -> dict[str, Array] | None:
        """The arrays after the step, or `None` if what came is no number."""
        moving = [name for name, array in self._sent.items() if array.dtype.kind == "f"]
        theta = np.concatenate([self._sent[name].ravel() for name in moving])
        G = np.concatenate([self._gradient(name, came).ravel() for name in moving])
        if not np.isfinite(G).all():
            return None
        state = self._state or start(self.rule, theta)
        # What was sent counts, even if the app changed it after the last step.
        self._state = step(
            self.rule, state._replace(theta=theta), G.astype(theta.dtype), self._last
        )
        ends = np.cumsum([self._sent[name].size for name in moving])
        parts = np.split(self._state.theta, ends[:-1])
        after = dict(self._sent)
        for name, part in zip(moving, parts, strict=True):
            after[name] = part.reshape(after[name].shape).astype(after[name].dtype)
        if self.sends == "parameters":
            counts = {name: np.rint(came[name]) for name in after.keys() - set(moving)}
            after |= {name: np.asarray(n, after[name].dtype) for name, n in counts.items()}
        return after

    @property
    def _last(self) -> int:
        return max(self._rounds, 1 + (self._state.t if self._state else 0))

    def _gradient(self, name: str, came: dict[str, Array]) -> Array:
        """What the rule is told about one array."""
        if name not in came:
            return np.zeros_like(self._sent[name])
        sign = {"parameters": -1, "delta": -1, "gradient": 1}[self.sends]
        origin = self._sent[name] if self.sends == "parameters" else 0
        return np.asarray(sign * (came[name] - origin))
