"""The elastic data set as tf.data and Keras see it, and its readers."""

import random
from typing import Any

import numpy as np
import pytest

from tfdist.data.errors import DataError
from tfdist.data.sources import ArraySource
from tfdist.errors import ConfigError

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

from tfdist.data.elastic import ElasticDataset, elastic_dataset  # noqa: E402 - needs TensorFlow


class Recorded(ArraySource):
    """Remembers the positions asked for."""

    def __init__(self, arrays):
        super().__init__(arrays)
        self.asked = []

    def read(self, positions):
        self.asked += np.asarray(positions).tolist()
        return super().read(positions)


def numbers(n=10):
    return (np.arange(n, dtype=np.float32)[:, None], np.arange(n, dtype=np.int64))


def order(dataset):
    return [int(y) for _, batch in dataset for y in batch]


def planned(dataset, epoch):
    return np.concatenate([dataset.plan.positions(epoch, step) for step in range(dataset.cardinality_steps)]).tolist()


def test_a_pass_has_each_sample_once_in_the_plan_s_order_and_the_next_pass_is_the_next_epoch():
    dataset = elastic_dataset(numbers(), 4)
    assert isinstance(dataset, tf.data.Dataset) and int(dataset.cardinality()) == 3
    for epoch in range(3):
        assert order(dataset) == planned(dataset, epoch)
    assert sorted(order(dataset)) == list(range(10)) and planned(dataset, 0) != planned(dataset, 1)


def test_another_data_set_with_the_same_seed_has_the_same_order_and_another_seed_another():
    assert order(elastic_dataset(numbers(), 4, seed=3)) == order(elastic_dataset(numbers(), 4, seed=3))
    assert order(elastic_dataset(numbers(), 4, seed=3)) != order(elastic_dataset(numbers(), 4, seed=4))


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_looking_at_the_first_batch_does_not_use_an_epoch_up(steps):
    dataset = elastic_dataset(numbers(12), 12 // steps)
    for _ in range(3):
        assert next(iter(dataset))[1].numpy().tolist() == planned(dataset, 0)[: 12 // steps]
    assert dataset.epochs.next_epoch == 0
    assert order(dataset) == planned(dataset, 0)


def test_one_step_epochs_are_counted_like_others():
    dataset = elastic_dataset(numbers(), 16)
    assert [order(dataset) for _ in range(3)] == [planned(dataset, epoch) for epoch in range(3)]


def test_dtypes_and_shapes_are_those_of_the_source():
    arrays = {
        "f": np.zeros((5, 2, 3)),
        "h": np.zeros(5, np.float16),
        "s": np.array(["a", "b", "c", "d", "e\0"], object),
    }
    dataset = elastic_dataset(arrays, 2)
    assert (
        dataset.batch_spec
        == dataset.element_spec
        == {
            "f": tf.TensorSpec([None, 2, 3], tf.float64),
            "h": tf.TensorSpec([None], tf.float16),
            "s": tf.TensorSpec([None], tf.string),
        }
    )
    assert sorted(text for batch in dataset for text in batch["s"].numpy()) == [b"a", b"b", b"c", b"d", b"e\0"]


def test_tensors_are_a_source_too():
    assert order(elastic_dataset((tf.zeros([4, 1]), tf.range(4)), 2, shuffle=False)) == [0, 1, 2, 3]


def test_a_tensorflow_map_fn_sees_one_sample_at_a_time():
    shapes = []

    def double(x, y):
        shapes.append(x.shape.as_list())
        return {"x": tf.cast(x, tf.float64) * 2, "y": y}

    dataset = elastic_dataset(numbers(), 4, map_fn=double, shuffle=False)
    assert dataset.batch_spec["x"] == tf.TensorSpec([None, 1], tf.float64)
    assert np.concatenate([batch["x"] for batch in dataset])[:, 0].tolist() == [2.0 * n for n in range(10)]
    assert shapes == [[1]], "it is traced once"


def test_a_plain_python_map_fn_gets_numpy_values():
    def to_text(x, y):
        return np.float64(x.astype(int)[0] + 0.5), str(y) if y else "none"

    dataset = elastic_dataset(numbers(3), 2, map_fn=to_text, shuffle=False)
    assert dataset.batch_spec == (tf.TensorSpec([None], tf.float64), tf.TensorSpec([None], tf.string))
    assert [text for _, texts in dataset for text in texts.numpy()] == [b"none", b"1", b"2"]


def fails_in_tensorflow(x, y):
    return tf.debugging.check_numerics(x, "bad"), y


def fails_in_python(x, y):
    if not np.isfinite(x.item()):
        raise ValueError("bad")
    return x, y


@pytest.mark.parametrize("map_fn", [fails_in_tensorflow, fails_in_python])
def test_an_error_in_map_fn_names_the_position_of_the_sample(map_fn):
    x, y = numbers()
    x[7] = np.inf
    with elastic_dataset((x, y), 4, map_fn=map_fn, shuffle=False).reader() as reader:
        assert reader.get(0, 0, 0, 4)[1].numpy().tolist() == [0, 1, 2, 3]
        with pytest.raises(DataError, match=r"(?s)map_fn failed for the sample at position 7: .*bad"):
            reader.get(0, 1, 0, 4)
    with pytest.raises(tf.errors.OpError, match="position 7"):
        order(elastic_dataset((x, y), 4, map_fn=map_fn))


def test_a_map_fn_that_fails_for_every_sample_is_refused_at_once_with_both_reasons():
    with pytest.raises(DataError, match=r"position 0: KeyError: 'image'.*As a TensorFlow function"):
        elastic_dataset(numbers(), 4, map_fn=lambda x, y: {"x": x}["image"])


def test_results_of_different_shapes_are_explained():
    ragged = elastic_dataset(numbers(), 4, map_fn=lambda x, y: tf.range(y), shuffle=False)
    with ragged.reader() as reader, pytest.raises(DataError, match=r"positions 0, 1, 2, 3.*shapes of its results"):
        reader.get(0, 0, 0, 4)


def test_ragged_results_of_map_fn_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="to_tensor"):
        elastic_dataset(numbers(), 4, map_fn=lambda x, y: tf.RaggedTensor.from_row_lengths(x, [1]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"source": tf.data.Dataset.range(3)}, "map_fn"),
        ({"source": np.zeros(0)}, "num_samples = 0"),
        ({"prefetch": -1}, "prefetch = -1"),
        ({"map_fn": 3}, "map_fn = 3"),
        ({"drop_remainder": True, "global_batch_size": 64}, "at most 10"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        elastic_dataset(**{"source": numbers(), "global_batch_size": 4, **value})


def test_a_batch_map_keeps_elasticity_and_the_count_of_epochs():
    dataset = elastic_dataset(numbers(), 4)
    mapped = dataset.map(lambda x, y: (x, y * 10), num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    assert isinstance(mapped, ElasticDataset)
    assert order(mapped) == [10 * n for n in planned(dataset, 0)]
    assert order(dataset) == planned(dataset, 1)
    with mapped.reader() as reader:
        assert reader.get(0, 1, 1, 3)[1].numpy().tolist() == (10 * dataset.plan.positions(0, 1, 1, 3)).tolist()


def test_options_keep_elasticity():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = elastic_dataset(numbers(), 4).with_options(options)
    assert isinstance(dataset, ElasticDataset)
    assert dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF


def test_a_batch_map_that_changes_the_rows_is_refused():
    with (
        elastic_dataset(numbers(), 4).map(lambda x, y: (x[:1], y)).reader() as reader,
        pytest.raises(DataError, match=r"made 1 rows of the 4 rows at positions .*take\(-1\)"),
    ):
        reader.get(0, 0, 0, 4)


def test_other_transformations_are_those_of_tf_data():
    repeated = elastic_dataset(numbers(), 4, shuffle=False).repeat(2).unbatch().batch(5)
    assert not isinstance(repeated, ElasticDataset)
    assert order(repeated) == list(range(10)) * 2


def test_readers_of_any_bounds_together_give_the_batches_and_read_only_their_own_rows():
    rng = random.Random(0)
    whole = elastic_dataset(numbers(37), 8, seed=5)
    sources = [Recorded(numbers(37)) for _ in range(3)]
    readers = [elastic_dataset(source, 8, seed=5, map_fn=lambda x, y: (x + 1, y)).reader() for source in sources]
    own: list[list[int]] = [[] for _ in readers]
    for step in range(whole.cardinality_steps):
        rows = whole.plan.rows(step)
        edges = [0, *sorted(rng.randint(0, rows) for _ in range(2)), rows]
        parts = [reader.get(2, step, edges[i], edges[i + 1])[1].numpy() for i, reader in enumerate(readers)]
        assert np.array_equal(np.concatenate(parts), whole.plan.positions(2, step))
        for rank, part in enumerate(parts):
            own[rank] += part.tolist()
    assert [source.asked for source in sources] == own
    assert all(reader.close() for reader in readers)


def test_a_share_without_rows_has_the_dtypes_and_shapes_of_a_batch():
    dataset = elastic_dataset((np.zeros((5, 3)), np.array(["a"] * 5)), 5, map_fn=lambda x, t: {"x": x, "t": t})
    with dataset.map(lambda d: (d["x"], tf.cast(d["x"][:, 0], tf.int32), d["t"])).reader() as reader:
        x, first, text = reader.get(0, 0, 2, 2)
    assert (x.shape, x.dtype) == ((0, 3), tf.float64)
    assert (first.shape, first.dtype) == ((0,), tf.int32)
    assert (text.shape, text.dtype) == ((0,), tf.string)


def test_a_ragged_batch_map_works_without_rows_too():
    dataset = elastic_dataset(np.array(["a b", "c"]), 2, shuffle=False).map(tf.strings.split)
    with dataset.reader() as reader:
        assert reader.get(0, 0, 0, 2).to_list() == [[b"a", b"b"], [b"c"]]
        assert reader.get(0, 0, 1, 1).to_list() == []


class Witness(keras.layers.Layer):
    """A row per sample, raised by one whenever the sample is trained on."""

    def build(self, _shape):
        self.seen = self.add_weight(shape=(50,), initializer="zeros", trainable=False, name="seen")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x, training=False):
        position = tf.cast(x[:, 0], tf.int32)
        if training:
            self.seen.assign(tf.tensor_scatter_nd_add(self.seen.value, position[:, None], tf.ones_like(x[:, 0])))
        return x * self.scale


def small_model():
    model = keras.Sequential([Witness()])
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    return model


def test_fit_trains_on_each_sample_once_an_epoch_and_validates_predicts_and_weighs():
    x, y = np.arange(50, dtype=np.float32)[:, None], np.arange(50) % 2
    train = elastic_dataset((x, y), 8, seed=1)
    validation = elastic_dataset((x, x * 0), 8, shuffle=False)
    model = small_model()
    history = model.fit(train, epochs=3, validation_data=validation, verbose=0)
    assert model.layers[0].seen.numpy().tolist() == [3.0] * 50
    assert train.epochs.next_epoch == 3
    assert history.history["val_loss"] == pytest.approx([np.mean(x**2)] * 3)

    assert model.predict(validation, verbose=0)[:, 0].tolist() == x[:, 0].tolist()

    model.fit(train, epochs=2, class_weight={0: 1.0, 1: 3.0}, verbose=0)
    assert model.layers[0].seen.numpy().tolist() == [5.0] * 50
    assert train.epochs.next_epoch == 5
    weighted = model.fit(elastic_dataset((x, y), 50), class_weight={0: 1.0, 1: 3.0}, verbose=0).history["loss"][0]
    assert weighted == pytest.approx(np.mean(np.where(y == 1, 3, 1) * (x[:, 0] - y) ** 2), rel=1e-5)


def test_under_a_strategy_of_tensorflow_building_the_model_uses_no_epoch_up():
    x = np.arange(50, dtype=np.float32)[:, None]
    train = elastic_dataset((x, x), 8)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = small_model()
    model.fit(train, epochs=2, verbose=0)
    assert model.layers[0].seen.numpy().tolist() == [2.0] * 50
