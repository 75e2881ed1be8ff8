import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from references import reference

from fedsofim.clients.group import Client, Group, transformed
from fedsofim.core.errors import ConfigError
from fedsofim.models import head
from fedsofim.models.coded import Rows
from fedsofim.models.crowd import Many, gradient_sums
from fedsofim.models.records import Factors

torch, opacus = reference("torch"), reference("opacus")


def make(rng, n, features, classes, scale=1.0, dtype=np.float64):
    x = (scale * rng.normal(size=(n, features))).astype(dtype)
    y = rng.integers(0, classes, n)
    theta = rng.normal(size=(classes, features + 1)).astype(dtype)
    return theta, x, y


def layer(theta):
    linear = torch.nn.Linear(theta.shape[1] - 1, theta.shape[0]).double()
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(theta[:, :-1]))
        linear.bias.copy_(torch.from_numpy(theta[:, -1]))
    return linear


def autograd_loop(theta, x, y, clip):
    """One backward pass an example."""
    total, linear = np.zeros_like(theta), layer(theta)
    for features, label in zip(x, y, strict=True):
        linear.zero_grad()
        logits = linear(torch.from_numpy(features)[None])
        torch.nn.functional.cross_entropy(logits, torch.tensor([label])).backward()
        g = np.hstack([linear.weight.grad.numpy(), linear.bias.grad.numpy()[:, None]])
        norm = np.linalg.norm(g)
        total += g * min(1.0, clip / norm) if norm > 0 else g
    return total


def opacus_sum(theta, x, y, clip):
    """Opacus' per-sample gradients, clipped over all parameters together and summed."""
    module = opacus.GradSampleModule(layer(theta), loss_reduction="sum")
    logits = module(torch.from_numpy(x))
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum").backward()
    weight, bias = (p.grad_sample for p in module.parameters())
    g = torch.cat([weight, bias[..., None]], dim=2)
    norms = g.flatten(1).norm(dim=1)
    scale = (clip / norms.clamp(min=1e-300)).clamp(max=1.0)
    return torch.einsum("n,nkf->kf", scale, g).numpy()


SHAPES = [(1, 1, 2), (7, 3, 2), (40, 12, 10), (65, 64, 3), (33, 2, 50)]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("clip", [1e-3, 1.0, 3.0, 1e9, math.inf])
@pytest.mark.parametrize(("n", "features", "classes"), SHAPES)
def test_clipped_sum_is_that_of_autograd_and_opacus(rng, n, features, classes, clip):
    theta, x, y = make(rng, n, features, classes)
    ours = head.clipped_gradient_sum(theta, head.examples(x, y, classes), clip)
    np.testing.assert_allclose(ours, autograd_loop(theta, x, y, clip), rtol=1e-10, atol=1e-12)
    if math.isfinite(clip):
        np.testing.assert_allclose(ours, opacus_sum(theta, x, y, clip), rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize(("n", "features", "classes"), [*SHAPES, (128, 5, 4), (1290, 2, 1)])
def test_clipped_sum_in_single_precision_is_that_of_opacus(rng, way, n, features, classes, clip):
    theta, x, y = make(rng, n, features, classes, scale=3, dtype=np.float32)
    ours = head.clipped_gradient_sum(theta, head.examples(x, y, classes), clip)
    exact = opacus_sum(theta.astype(float), x.astype(float), y, clip)
    np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=1e-6 * n)


@pytest.mark.parametrize(
    "n", [1, 63, 64, 65, *(k * head.CHUNK + d for k in (1, 2) for d in (-1, 0, 1))]
)
def test_chunks_do_not_show(rng, n):
    theta, x, y = make(rng, n, 3, 4)
    data = head.examples(x, y, 4)
    r = head.residual(theta, data)
    norm = np.linalg.norm(r, axis=0) * data.norm
    whole = (r * np.minimum(1, 1.5 / norm)) @ data.x.T
    np.testing.assert_allclose(head.clipped_gradient_sum(theta, data, 1.5), whole, rtol=1e-11)


@pytest.mark.parametrize("stack", [1, 2, 17, 40])
@pytest.mark.parametrize("clip", [2.0, math.inf])
def test_a_stack_of_heads_is_each_head_alone(rng, stack, clip):
    _, x, y = make(rng, 1500, 6, 4)
    theta = rng.normal(size=(stack, 4, 7))
    data = head.examples(x, y, 4)
    alone = np.stack([head.clipped_gradient_sum(one, data, clip) for one in theta])
    np.testing.assert_allclose(head.clipped_gradient_sum(theta, data, clip), alone, rtol=1e-10)


def test_heads_of_a_stack_may_have_clips_of_their_own(rng):
    _, x, y = make(rng, 1500, 6, 4)
    theta, clips = rng.normal(size=(3, 4, 7)), (0.5, math.inf, 2.0)
    data = head.examples(x, y, 4)
    alone = [head.clipped_gradient_sum(t, data, c) for t, c in zip(theta, clips, strict=True)]
    together = head.clipped_gradient_sum(theta, data, np.array(clips)[:, None, None])
    np.testing.assert_allclose(together, alone, rtol=1e-10)


def test_stacks_in_single_precision(rng, way):
    _, x, y = make(rng, 1500, 6, 4, dtype=np.float32)
    theta = rng.normal(size=(70, 4, 7)).astype(np.float32)
    clips = rng.choice([0.5, 2.0, math.inf], (70, 1, 1)).astype(np.float32)
    clips[0] = 0.5
    together = head.clipped_gradient_sum(theta, head.examples(x, y, 4), clips)
    exact = head.clipped_gradient_sum(
        theta.astype(float), head.examples(x.astype(float), y, 4), clips.astype(float)
    )
    np.testing.assert_allclose(together, exact, rtol=1e-4, atol=2e-3)


def test_zero_gradients_stay_zero():
    theta = np.zeros((2, 3))
    theta[0, -1] = 1e4  # so sure of class 0 that the softmax is exactly one-hot
    data = head.examples(np.ones((5, 2)), np.zeros(5, int), 2)
    assert not head.clipped_gradient_sum(theta, data, 1.0).any()


def test_squares_that_underflow_do_not_hide_a_gradient_from_the_clip(rng, way):
    theta, x, y = make(rng, 1, 4, 3, dtype=np.float32)
    theta[:] = 0
    theta[y[0], -1] = 53  # the residual is 1e-23, its square is 0 in float32
    for clip in (1e-25, 1e-30):
        total = head.clipped_gradient_sum(theta, head.examples(x, y, 3), clip)
        assert np.linalg.norm(total.astype(float)) <= 1.001 * clip


def test_a_huge_gradient_counts_for_the_clip(rng):
    theta, x, y = make(rng, 1, 4, 3)
    total = head.clipped_gradient_sum(theta, head.examples(1e100 * x, y, 3), 2.5)
    assert np.linalg.norm(total) == pytest.approx(2.5) or not total.any()
    theta[:] = 0
    total = head.clipped_gradient_sum(theta, head.examples(1e100 * x, y, 3), 2.5)
    assert np.linalg.norm(total) == pytest.approx(2.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, "large"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gradient_that_is_not_finite_contributes_zero(rng, way, dtype, bad, stacked):
    theta, x, y = make(rng, 300, 4, 3, dtype=dtype)
    broken = x.copy()
    broken[240] = np.finfo(dtype).max / 100 if bad == "large" else bad
    rest = np.arange(300) != 240
    theta = np.stack([theta, -theta]) if stacked else theta
    total = head.clipped_gradient_sum(theta, head.examples(broken, y, 3), 1.0)
    expected = head.clipped_gradient_sum(theta, head.examples(x[rest], y[rest], 3), 1.0)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(total, expected, rtol=1e4 * eps, atol=1e3 * eps)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_parameters_that_are_not_finite_release_nothing_but_finite_sums(rng, way, bad):
    theta, x, y = make(rng, 50, 4, 3, scale=1e3, dtype=np.float32)
    theta[1] = bad
    total = head.clipped_gradient_sum(theta, head.examples(x, y, 3), 1.0)
    assert np.isfinite(total).all()
    assert np.linalg.norm(total) <= 50 * 1.001
    assert bad == 1e38 or not total.any()


features = arrays(np.float64, (6, 3), elements=st.floats(-1e6, 1e6))
record = arrays(np.float64, (3,), elements=st.floats(-1e150, 1e150))
parameters = arrays(np.float64, (4, 4), elements=st.floats(-100, 100))


@given(features, record, st.integers(0, 3), st.integers(0, 5), parameters, st.floats(1e-3, 1e3))
def test_one_record_moves_the_sum_by_at_most_its_sensitivity(x, new, label, where, theta, clip):
    y = np.array([0, 1, 2, 3, 0, 1])
    total = head.clipped_gradient_sum(theta, head.examples(x, y, 4), clip)
    replaced_x, replaced_y = x.copy(), y.copy()
    replaced_x[where], replaced_y[where] = new, label
    with np.errstate(over="ignore", invalid="ignore"):
        replaced = head.clipped_gradient_sum(theta, head.examples(replaced_x, replaced_y, 4), clip)
    rest = np.arange(6) != where
    removed = head.clipped_gradient_sum(theta, head.examples(x[rest], y[rest], 4), clip)
    assert np.linalg.norm(total - replaced) <= 2 * clip * (1 + 1e-9)
    assert np.linalg.norm(total - removed) <= clip * (1 + 1e-9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.floats(1e-2, 1e3))
def test_sensitivity_holds_in_single_precision(way, seed, clip):
    rng = np.random.default_rng(seed)
    theta, x, y = make(rng, 20, 8, 5, scale=100, dtype=np.float32)
    total = head.clipped_gradient_sum(theta, head.examples(x, y, 5), clip)
    x[3], y[3] = 1e4 * rng.normal(size=8), 0
    replaced = head.clipped_gradient_sum(theta, head.examples(x, y, 5), clip)
    assert np.linalg.norm((total - replaced).astype(float)) <= 2 * clip * (1 + 1e-5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.floats(-6, 6), st.floats(-6, 18), st.floats(0, 4))
def test_no_record_exceeds_the_clip_in_single_precision(way, seed, clip, size, sureness):
    rng, clip = np.random.default_rng(seed), 10.0**clip
    theta, x, y = make(rng, 1, 8, 5, scale=10.0**size, dtype=np.float32)
    theta *= np.float32(10.0 ** (sureness - size))
    one = head.clipped_gradient_sum(theta, head.examples(x, y, 5), clip)
    assert np.linalg.norm(one.astype(float)) <= clip * (1 + 1e-5)


def test_the_kernel_gives_no_weight_to_a_norm_that_is_not_a_number():
    kernel = pytest.importorskip("fedsofim_kernel").clipped_residuals
    target, clip = np.eye(2, dtype="f4"), np.ones(1, "f4")
    for norm, U in ((math.nan, 1), (math.inf, 1), (1, math.nan), (1, math.inf)):
        z = np.zeros((1, 2, 2), "f4")
        assert kernel(z, target, np.full(2, norm, "f4"), clip, np.full((1, 2, 2), U, "f4"))
        assert not z.any()


@pytest.mark.parametrize("clip", [0.0, -0.0, -1.0, math.nan])
@pytest.mark.parametrize("triangle", [None, np.eye(3, dtype="f4")[None]])
def test_the_kernel_lets_nothing_through_a_clip_that_is_not_positive(clip, triangle):
    kernel = pytest.importorskip("fedsofim_kernel").clipped_residuals
    z, target = np.ones((1, 3, 5), "f4"), np.eye(3, 5, dtype="f4")
    assert kernel(z, target, np.ones(5, "f4"), np.full(1, clip, "f4"), triangle)
    assert not z.any()


def test_the_kernel_takes_what_it_can_work_on_only():
    kernel = pytest.importorskip("fedsofim_kernel").clipped_residuals
    z, target, norm, clip = (np.ones(s, "f4") for s in ((2, 3, 8), (3, 8), (8,), (2,)))
    assert kernel(z, target, norm, clip) is False
    for wrong in (
        (z.astype(float), target, norm, clip),
        (z[:, :, ::2], target[:, ::2], norm[:4], clip),
        (z, target[:2], norm, clip),
        (z, target, norm[:7], clip),
        (z, target, norm[:4].repeat(4)[::2], clip),
        (z, target, norm, clip[:1]),
        (z[:, :0].copy(), target[:0], norm, clip),
        (np.broadcast_to(z, z.shape), target, norm, clip),
    ):
        with pytest.raises((TypeError, ValueError)):
            kernel(*wrong)


def test_the_sensitivity_is_reached(rng):
    theta = np.zeros((2, 2))
    one, other = (head.examples(np.array([[1e6]]), np.array([y]), 2) for y in (0, 1))
    moved = head.clipped_gradient_sum(theta, one, 3.0) - head.clipped_gradient_sum(
        theta, other, 3.0
    )
    assert np.linalg.norm(moved) == pytest.approx(6.0)


@pytest.mark.parametrize("features", [768, 10_000])
def test_long_sums_of_squares_do_not_hide_a_gradient_from_the_clip(way, features):
    x = np.full((2, features), 1.99, np.float32)  # its square is nearly half a digit of the first's
    x[:, 0] = 8192
    theta = np.zeros((2, features + 1), np.float32)
    one = head.clipped_gradient_sum(theta, head.examples(x, np.zeros(2, int), 2), 1.0)
    assert np.linalg.norm(one.astype(float)) <= 2 * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whatever_the_bits_of_a_nan_are_it_contributes_zero(rng, way):
    theta, x, y = make(rng, 300, 4, 3, dtype=np.float32)
    rest = np.arange(300) != 7
    expected = head.clipped_gradient_sum(theta, head.examples(x[rest], y[rest], 3), 1.0)
    for bits in (0x7FC00000, 0x7FC00001, 0x7FC00180, 0x7F8001FF, 0xFFC00134):
        x[7].view(np.uint32)[:] = bits
        total = head.clipped_gradient_sum(theta, head.examples(x, y, 3), 1.0)
        np.testing.assert_allclose(total, expected, rtol=1e-3, atol=1e-4)


def test_inputs_are_not_changed(rng):
    theta, x, y = make(rng, 200, 4, 3)
    x[5] = np.inf
    data = head.examples(x, y, 3)
    before = [a.copy() for a in (theta, x, y, *data[:3])]
    with np.errstate(invalid="ignore"):
        head.clipped_gradient_sum(theta, data, 0.1)
        data.evaluate(theta)
    for a, b in zip((theta, x, y, *data[:3]), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_gradient_per_example_is_built(rng):
    theta, x, y = make(rng, 20_000, 64, 10, dtype=np.float32)
    data = head.examples(x, y, 10)
    tracemalloc.start()
    head.clipped_gradient_sum(theta, data, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 10 * 4  # even the residuals of all examples would take this many bytes


def test_evaluate_is_torch_cross_entropy(rng):
    theta, x, y = make(rng, 2500, 6, 4)
    accuracy, loss = head.examples(x, y, 4).evaluate(theta)
    logits = layer(theta)(torch.from_numpy(x))
    assert loss == pytest.approx(
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(y)).item(), rel=1e-12
    )
    assert accuracy == (logits.argmax(1).numpy() == y).mean()


def test_evaluate_survives_large_logits():
    data = head.examples(np.array([[1e5]]), np.array([1]), 2)
    accuracy, loss = data.evaluate(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert (accuracy, loss) == (0.0, 1e5)


def test_initial_parameters_have_the_papers_spread():
    theta = head.init(np.random.default_rng(0), 100, 999)
    assert theta.dtype == np.float32
    assert theta.shape == (100, 1000)
    assert theta.std() == pytest.approx(0.5 * math.sqrt(2 / 1100), rel=0.01)


def test_examples_end_with_the_bias(rng):
    _, x, y = make(rng, 9, 4, 3)
    data = head.examples(x, y, 3)
    np.testing.assert_array_equal(data.x[:-1], x.T)
    assert (data.x[-1] == 1).all()
    np.testing.assert_array_equal(data.target.argmax(0), y)
    np.testing.assert_allclose(data.norm, np.linalg.norm(data.x, axis=0))


@pytest.mark.parametrize("wrong", [-1, 3, 256, 2**40])
@pytest.mark.parametrize("kept", [np.asarray, Rows])
def test_labels_that_are_no_class_are_refused(kept, wrong):
    with pytest.raises(ConfigError, match="from 0 to 2"):
        head.examples(kept(np.ones((2, 4), np.float32)), np.array([0, wrong]), 3)


def crowd(rng, sizes, features, classes):
    x = [rng.normal(size=(n, features)).astype(np.float32) for n in sizes]
    return [head.examples(some, rng.integers(0, classes, len(some)), classes) for some in x]


@pytest.mark.parametrize("clip", [0.5, math.inf])
@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize(("features", "classes"), [(1, 1), (5, 3), (16, 9), (64, 10), (31, 14)])
def test_sums_of_many_clients_are_those_of_each_in_double(rng, stack, features, classes, clip):
    data = crowd(rng, [1, 5, 16, 17, 31, 32, 33, 129, 700, 3], features, classes)
    thetas = rng.normal(size=(len(data), *stack, classes, features + 1)).astype(np.float32)
    together = gradient_sums(thetas, data, clip)
    for total, theta, D in zip(together, thetas, data, strict=True):
        exact = head.clipped_gradient_sum(
            theta.astype(float), head.examples(D.x[:-1].T.astype(float), D.labels, classes), clip
        )
        np.testing.assert_allclose(total, exact, rtol=1e-4, atol=1e-5 * D.size)


@pytest.mark.parametrize("transformed", [False, True])
def test_a_clients_sum_has_the_same_bits_in_every_company(rng, transformed):
    data = crowd(rng, [5, 40, 32, 300, 1, 77], 12, 4)
    if transformed:
        factors = Factors(*(rng.normal(size=(n, n)).astype(np.float32) for n in (4, 13)))
        data = [D.with_transform(factors) for D in data]
    thetas = rng.normal(size=(6, 4, 13)).astype(np.float32)
    together = gradient_sums(thetas, data, 2.0)
    order = [4, 0, 5, 3, 1, 2]
    mixed = gradient_sums(thetas[order], [data[i] for i in order], 2.0)
    np.testing.assert_array_equal(mixed, together[order])
    for i, D in enumerate(data):
        np.testing.assert_array_equal(gradient_sums(thetas[i : i + 1], [D], 2.0)[0], together[i])
        np.testing.assert_array_equal(D.gradient_sum(thetas[i], 2.0).value, together[i])


@pytest.mark.parametrize("stack", [(), (1,), (2,)])
@pytest.mark.parametrize(("features", "classes"), [(4, 3), (4, 1), (0, 3), (0, 1)])
def test_one_theta_for_all_is_as_many_of_it(rng, stack, features, classes):
    data, shape = crowd(rng, [5, 6, 70], features, classes), (*stack, classes, features + 1)
    theta = rng.standard_normal(shape, np.float32)
    shared = gradient_sums(np.broadcast_to(theta, (3, *shape)), data, 1.0)
    np.testing.assert_array_equal(shared, gradient_sums(np.stack([theta] * 3), data, 1.0))


def test_the_kernel_refuses_crowds_that_do_not_fit(rng):
    sums = pytest.importorskip("fedsofim_kernel").clipped_sums
    D, one = crowd(rng, [4], 2, 3)[0], np.ones(1, np.float32)
    theta, out = np.zeros((1, 1, 3, 3), np.float32), np.zeros((1, 1, 3, 3), np.float32)
    eye, wide = np.eye(3, dtype=np.float32), np.zeros((1, 1, 3, 4), np.float32)
    sums(out, theta, [D.x], [D.target], [D.norm], one)
    sums(out, theta, [D.x], [D.target], [D.norm], one, None, 1, eye, eye[None])
    for bad in (
        (out, theta, [], [D.target], [D.norm], one),
        (out, theta, [D.x[:2]], [D.target], [D.norm], one),
        (out, theta, [D.x], [D.target[:, :3]], [D.norm], one),
        (out, theta, [D.x], [D.target], [D.norm[:2]], one),
        (out, theta, [D.x], [D.target], [D.norm], np.ones(2, np.float32)),
        (out, theta, [D.x], [D.target], [D.norm], one, np.zeros((1, 2, 3), np.float32)),
        (out, np.zeros((1, 1, 3, 6), np.float32)[..., ::2], [D.x], [D.target], [D.norm], one),
        (out, theta[:, :, :2], [D.x], [D.target], [D.norm], one),
        (out, theta, [D.x], [D.target], [D.norm], one, None, 1, np.eye(2, dtype=np.float32)),
        (out, theta, [D.x], [D.target], [D.norm], one, None, 1, eye, np.eye(2, 3)[None]),
        (out, theta, [D.x], [D.target], [D.norm], one, None, 1, None, eye[None]),
        (out, theta, [D.x], [D.target], [D.norm], one, None, 1, eye, None, True),
        (wide, theta, [D.x], [D.target], [D.norm], one, None, 1, None, None, True),
        (out, theta[..., :0], [D.x[:0]], [D.target], [D.norm], one, None, 1, None, None, True),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            sums(*bad)
    for bad in (D.x.astype(float), D.x.T[::2].T, "x"):
        with pytest.raises((ValueError, TypeError)):
            sums(out, theta, [bad], [D.target], [D.norm], one)
    with pytest.raises(TypeError):
        sums(out, theta, (D.x,), [D.target], [D.norm], one)


@pytest.mark.parametrize("threads", [2, 3, 50, -1])
def test_threads_of_the_kernel_change_no_bit(rng, threads):
    sums = pytest.importorskip("fedsofim_kernel").clipped_sums
    data, one = crowd(rng, [40, 900, 3, 0, 33, 5000, 1], 8, 3), np.ones(2, np.float32)
    thetas = rng.normal(size=(7, 2, 3, 9)).astype(np.float32)
    alone, shared_out = np.zeros_like(thetas), np.ones_like(thetas)
    lists = [[D[k] for D in data] for k in range(3)]
    held = sums(alone, thetas, *lists, one)
    sums(shared_out, thetas, held, None, None, one, None, threads)
    np.testing.assert_array_equal(shared_out, alone)


def test_long_rows_begin_where_cache_lines_do(rng):
    D = crowd(rng, [700], 8, 3)[0]
    for a in (D.x, D.target):
        assert a.shape[1] == 700
        assert (a.ctypes.data % 64, a.strides) == (0, (704 * 4, 4))
    (D,) = crowd(rng, [2048], 8, 3)
    assert D.x.strides == D.target.strides == ((2048 + 16) * 4, 4)  # not pages apart


def test_clients_that_the_kernel_has_looked_up_have_the_same_sums(rng):
    sums = pytest.importorskip("fedsofim_kernel").clipped_sums
    data, one = crowd(rng, [4, 9], 2, 3), np.ones(1, np.float32)
    thetas = rng.normal(size=(2, 1, 3, 3)).astype(np.float32)
    first, again = np.zeros_like(thetas), np.zeros_like(thetas)
    lists = [[D[k] for D in data] for k in range(3)]
    held = sums(first, thetas, *lists, one)
    del lists
    assert sums(again, thetas, held, None, None, one) is held
    np.testing.assert_array_equal(first, again)
    for other in (thetas[:1], np.zeros((2, 1, 4, 3), np.float32)):
        with pytest.raises(ValueError, match="other clients"):
            sums(np.zeros_like(other), other, held, None, None, one)
    with pytest.raises((TypeError, ValueError)):
        sums(again, thetas, rng, None, None, one)


# Around steps, blocks and chunks of client.c, with tiles of one height and of two.
MANY = [(33, 64, 10), (160, 7, 3), (545, 300, 11), (512, 65, 1), (4128, 9, 23), (4129, 16, 10)]


def many(rng, n, features, classes, transform):
    """Examples in single precision, the same in double, and parameters."""
    x = rng.standard_normal((n, features), dtype=np.float32)
    y, sides = rng.integers(0, classes, n), (classes, features + 1)
    factors = Factors(*(rng.standard_normal((k, k), dtype=np.float32) / 8 for k in sides))
    data = [head.examples(x.astype(dtype), y, classes) for dtype in (np.float32, np.float64)]
    if transform:
        double = Factors(*(side.astype(np.float64) for side in factors))
        data = [D.with_transform(f) for D, f in zip(data, (factors, double), strict=True)]
    return *data, rng.standard_normal((3, *sides), dtype=np.float32) / 8


FEW = [(1, 5, 3), (8, 9, 10), (9, 64, 10), (16, 3, 7), (17, 20, 12), (32, 7, 2)]


@pytest.mark.parametrize(("n", "features", "classes"), FEW + MANY)
@pytest.mark.parametrize("transform", [False, True])
def test_the_sum_of_examples_is_that_of_float64(rng, n, features, classes, transform):
    data, same, theta = many(rng, n, features, classes, transform)
    found = head.clipped_gradient_sum(theta, data, 1.0)
    expected = head.clipped_gradient_sum(theta.astype(np.float64), same, 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("n", [1, 31, 33, 700, 4095, 4096, 9000])
@pytest.mark.parametrize(("features", "classes"), [(64, 10), (3, 2), (9, 23), (1, 200)])
def test_curvature_in_single_precision_is_that_of_float64(rng, way, n, features, classes):
    data, same, theta = many(rng, n, features, classes, transform=False)
    for C, D in zip(
        data.curvature(theta[0])[0], same.curvature(theta[0].astype(float))[0], strict=True
    ):
        np.testing.assert_allclose(C, D, atol=1e-6 * max(1, np.abs(D).max()))


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize(("features", "classes"), [(64, 10), (5, 3), (31, 14), (70, 1)])
def test_sums_are_transformed_as_they_are_made_or_afterwards_with_the_same_bits(
    rng, stack, features, classes
):
    kernel = pytest.importorskip("fedsofim_kernel")
    data, one = crowd(rng, [40, 900, 3, 0], features, classes), np.ones(stack, np.float32)
    K, W, shape = classes, features + 1, (4, stack, classes, features + 1)
    A, G, thetas = (rng.standard_normal(s, np.float32) for s in ((W, W), (stack, K, K), shape))
    lists = [[D[k] for D in data] for k in range(3)]
    for left in (None, G):
        at_once, later = np.zeros_like(thetas), np.zeros_like(thetas)
        kernel.clipped_sums(at_once, thetas, *lists, one, None, 2, A, left)
        kernel.clipped_sums(later, thetas, *lists, one)
        plain = later.astype(float)
        kernel.transform_sums(later, A, left)
        np.testing.assert_array_equal(at_once, later)
        exact = (plain if left is None else G.astype(float) @ plain) @ A.astype(float)
        np.testing.assert_allclose(later, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("change", ["outputs", "features", "both", "nothing", "a map"])
def test_a_group_under_another_transform_has_the_sums_of_a_new_one(rng, way, change):
    def under(data, factors):
        received = {"P": P} if factors is None else factors._asdict()
        return transformed(data, received, exact=False)

    def sums(group):
        return gradient_sums(thetas, group.heads_data, 0.5)

    raw = [Client(i, D) for i, D in enumerate(crowd(rng, [5, 40, 300], 12, 4))]
    first, other = (
        Factors(*(rng.standard_normal((n, n), np.float32) for n in (4, 13))) for _ in range(2)
    )
    P = np.triu(rng.standard_normal((13, 13), np.float32))
    thetas = rng.standard_normal((3, 4, 13), np.float32)
    now = {
        "outputs": first._replace(U_G=other.U_G),
        "features": first._replace(U_A=other.U_A),
        "both": other,
        "nothing": first,
        "a map": None,
    }[change]
    group = Group(under(raw, first))
    before = sums(group)
    group.renew(under(group, now))
    np.testing.assert_array_equal(sums(group), sums(Group(under(raw, now))))
    assert (sums(group) == before).all() == (change == "nothing")


@pytest.mark.parametrize("side", ["outputs", "features"])
def test_clients_that_share_one_side_of_a_transform_have_their_own_sums(rng, way, side):
    first, other = (
        Factors(*(rng.standard_normal((n, n), np.float32) for n in (4, 13))) for _ in range(2)
    )
    mixed = other._replace(U_G=first.U_G) if side == "outputs" else other._replace(U_A=first.U_A)
    raw, thetas = crowd(rng, [5, 40], 12, 4), rng.standard_normal((2, 4, 13), np.float32)
    many = Many(D.with_transform(first) for D in raw)
    data = [D.with_transform(f) for D, f in zip(many, (first, mixed), strict=True)]
    alone = [gradient_sums(theta[None], [D], 0.5)[0] for theta, D in zip(thetas, data, strict=True)]
    np.testing.assert_array_equal(gradient_sums(thetas, data, 0.5), alone)
    gradient_sums(thetas, many, 0.5)
    many.renew(data)
    np.testing.assert_array_equal(gradient_sums(thetas, many, 0.5), alone)


@pytest.mark.parametrize(("n", "features", "classes"), MANY)
def test_a_head_of_many_examples_has_the_bits_in_a_stack_that_it_has_alone(
    rng, n, features, classes
):
    pytest.importorskip("fedsofim_kernel")
    data, _, theta = many(rng, n, features, classes, transform=False)
    together = head.clipped_gradient_sum(theta, data, 1.0)
    for one, alone in zip(together, theta, strict=True):
        assert one.tobytes() == head.clipped_gradient_sum(alone, data, 1.0).tobytes()


def test_neither_where_examples_lie_nor_how_far_apart_shows_in_a_sum(rng):
    data, _, theta = many(rng, 700, 64, 10, transform=False)
    larger, _, _ = many(rng, 900, 64, 10, transform=False)
    for place in (0, 1, 37):
        for a, b in zip(larger[:3], data[:3], strict=True):
            a[..., place : place + 700] = b
        part = larger.part(slice(place, place + 700))
        found = head.clipped_gradient_sum(theta, part, 1.0)
        assert found.tobytes() == head.clipped_gradient_sum(theta, data, 1.0).tobytes()


@pytest.mark.parametrize("n", [1, 4, 5, 16, 17, 32])
@pytest.mark.parametrize(("features", "classes"), [(1, 1), (2, 12), (15, 3), (16, 10), (64, 11)])
def test_a_few_examples_among_others_have_the_sum_that_they_have_alone(rng, n, features, classes):
    sums = pytest.importorskip("fedsofim_kernel").clipped_sums
    (data,) = crowd(rng, [n + 9], features, classes)
    data.x[:, :4], data.x[:, n + 4 :] = np.nan, np.inf  # its neighbours in memory
    part = data.part(slice(4, n + 4))
    alone = head.Examples(*(np.ascontiguousarray(a) for a in part[:3]))
    theta = rng.standard_normal((classes, features + 1), dtype=np.float32)
    room = np.full((3, 1, *theta.shape), 7, np.float32)
    sums(room[1:2], theta[None, None], *([a] for a in part[:3]), np.ones(1, np.float32))
    assert room[1, 0].tobytes() == head.clipped_gradient_sum(theta, alone, 1.0).tobytes()
    assert (room[::2] == 7).all()  # nothing is written beside it


@pytest.mark.parametrize("n", [3, 32, 40])
def test_rows_that_go_back_in_memory_have_the_same_sum(rng, n):
    sums = pytest.importorskip("fedsofim_kernel").clipped_sums
    (data,) = crowd(rng, [n], 8, 3)
    theta = rng.standard_normal((1, 1, 3, 9), dtype=np.float32)
    back, found = np.ascontiguousarray(data.x[::-1])[::-1], np.zeros((2, *theta.shape), np.float32)
    for out, x in zip(found, (data.x, back), strict=True):
        sums(out, theta, [x], [data.target], [data.norm], np.ones(1, np.float32))
    assert found[0].any()
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("where", [0, 300, 511, 640, 698])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_of_many_that_is_not_finite_contributes_zero_wherever_it_is(rng, way, where, bad):
    x = rng.standard_normal((700, 5), dtype=np.float32)
    y, theta = rng.integers(0, 3, 700), rng.standard_normal((3, 6), dtype=np.float32)
    rest = np.arange(700) != where
    expected = head.clipped_gradient_sum(theta, head.examples(x[rest], y[rest], 3), 1.0)
    x[where, 2] = bad
    found = head.clipped_gradient_sum(theta, head.examples(x, y, 3), 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
