"""Trains a small convolutional network on the handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels.

    tfdist run --workers 3 examples/digits.py      three workers; kill any of them with kill -9 and look
    python examples/digits.py                      the same script in one process
    tfdist run examples/digits.py --checkpoints /tmp/ckpt
                                                   end it with Ctrl-C or kill, start it again with other workers
    python examples/digits.py --plain              plain Keras, nothing of tfdist but the order of the samples

The lines with tfdist in them are all that a script needs. The witness (witness.py) is there to prove a point: it counts
inside the model how often each sample was used.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import keras
import numpy as np
import sklearn.datasets
from witness import LEARNING_RATE, OnePerUse, counts, with_witness

import tfdist

GLOBAL_BATCH = 48  # does not divide the 1,437 samples: the last batch of an epoch is a short one
HELD_OUT = 5  # every fifth image


def load(training: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 8, 8, 1] in 0 to 1, and digits [n]."""
    digits = sklearn.datasets.load_digits()
    chosen = (np.arange(len(digits.target)) % HELD_OUT != 0) == training
    return digits.images[chosen, :, :, None] / 16.0, digits.target[chosen].astype("int64")


def network() -> keras.Model:
    """About 19,000 weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ],
        name="network",
    )


def dataset(training: bool) -> tfdist.data.ElasticDataset:
    """Global batches: the same ones whatever the number of workers, in a new order each epoch."""
    images, digits = load(training)
    inputs = {"image": images, "sample": np.arange(len(images))}
    targets = {"digit": digits, "uses": np.zeros((len(images), 1))}
    return tfdist.data.elastic_dataset((inputs, targets), GLOBAL_BATCH, shuffle=training, seed=7)


def train(
    epochs: int = 20, precision: str = "float32", plain: bool = False, checkpoints: str = "", **membership: float
) -> dict[str, Any]:
    """Trains, evaluates on the held-out part, and returns what the demo compares.

    Args:
        epochs: passes over the 1,437 training samples.
        precision: "float32" or "float64".
        plain: without a tfdist strategy.
        checkpoints: a directory; then a job that was preempted goes on from there when it is started again.
        membership: options of `tfdist.MembershipOptions`.
    """
    keras.config.set_floatx(precision)
    keras.utils.set_random_seed(1)
    scope: Any = contextlib.nullcontext()
    callbacks: list[keras.callbacks.Callback] = []
    if not plain:
        options = tfdist.MembershipOptions(**membership)
        scope = tfdist.ElasticMultiWorkerMirroredStrategy(membership=options).scope()
        callbacks.append(tfdist.callbacks.ElasticTraining())
    if checkpoints:
        callbacks += [tfdist.callbacks.AsyncCheckpoint(checkpoints), tfdist.callbacks.PreemptionHandler()]
    with scope:
        model = with_witness(network(), samples=len(load(training=True)[0]))
        model.compile(
            optimizer=keras.optimizers.SGD(LEARNING_RATE),
            loss={"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "uses": OnePerUse()},
            metrics={"digit": "accuracy"},
        )
    history = model.fit(dataset(training=True), epochs=epochs, callbacks=callbacks, verbose=2)
    held_out = model.evaluate(dataset(training=False), verbose=0, return_dict=True)
    return {
        "accuracy": held_out["digit_accuracy"],
        "loss": history.history["loss"],
        "uses": counts(model),
        "weights": {v.path: np.asarray(v) for v in model.trainable_variables},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--precision", choices=("float32", "float64"), default="float32")
    parser.add_argument("--plain", action="store_true", help="plain Keras in one process")
    parser.add_argument("--checkpoints", default="", metavar="DIR", help="save here, and go on from what is there")
    arguments = parser.parse_args()
    result = train(arguments.epochs, arguments.precision, arguments.plain, arguments.checkpoints)
    uses = result["uses"]
    print(f"held-out accuracy {result['accuracy']:.4f}; each sample was used {uses.min():g} to {uses.max():g} times")


if __name__ == "__main__":
    main()
