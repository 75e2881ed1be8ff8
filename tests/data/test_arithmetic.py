"""A backbone works where and how it is told; half precision is safe or not used."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedsofim.core.errors import ConfigError
from fedsofim.data.arithmetic import MOST, MOVED, Workplace, as_many_as_pay, workplace
from fedsofim.data.backbones import Backbone, random_backbone
from fedsofim.data.recipe import FeaturesConfig


class Fragile(Backbone):
    """Sums of the image behind a layer that cancels: its last digits are all that is left."""

    width = 2

    def __init__(self, offset):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(self.linear.weight, 1.0)
        torch.nn.init.constant_(self.linear.bias, offset)
        self.offset = offset

    def embed(self, x):
        return self.linear(x.mean(dim=(2, 3))) - self.offset

    def forward(self, x):
        return self.embed(x)


class Overflowing(Fragile):
    """Infinite in half precision for bright images."""

    def embed(self, x):
        features = self.linear(x.mean(dim=(2, 3)))
        if features.dtype == torch.float32:
            return features
        return torch.where(features > 10, torch.inf, features)


def asked(arithmetic):
    return FeaturesConfig(device="cpu", arithmetic=arithmetic)


def test_mixed_precision_moves_features_little():
    network = random_backbone("resnet20", seed=0)
    mixed, single = workplace(network, asked("mixed")), workplace(network, asked("auto"))
    assert (mixed.arithmetic, single.arithmetic) == ("mixed", "single")
    x = torch.rand(6, 3, 32, 32)
    with torch.inference_mode():
        a, b = mixed.embed(x), single.embed(x)
    assert a.dtype == np.float32
    assert 0 < np.linalg.norm(a - b) < 2 * MOVED * np.linalg.norm(b)


def test_where_it_is_not_safe_it_is_refused():
    assert not workplace(Fragile(1000.0), asked("single")).mixed
    with pytest.raises(ConfigError, match="features of noise by"):
        workplace(Fragile(1000.0), asked("mixed"))


def test_only_the_record_that_overflows_is_done_again():
    place = Workplace(Overflowing(0.0), mixed=True)
    x = torch.rand(4, 3, 32, 32)
    with torch.inference_mode():
        before = place.embed(x)
        x[1] = 50.0
        after = place.embed(x)
    np.testing.assert_allclose(after[1], 150, rtol=1e-6)
    np.testing.assert_array_equal(after[[0, 2, 3]], before[[0, 2, 3]])


@pytest.mark.parametrize(
    ("room", "fixed", "expected"),
    [(10**9, 0.0, 32), (10**9, 1e9, MOST), (128, 1e9, 128), (8, 0.0, 8), (0, 0.0, 1)],
)
def test_images_at_a_time_are_as_many_as_pay_and_fit(room, fixed, expected):
    def seconds(count):
        if count > room:
            raise torch.OutOfMemoryError("no room")
        return fixed + count

    assert as_many_as_pay(seconds, 32) == expected
