"""The smallest elastic script. `tfdist run --workers 3 examples/minimal.py`, then kill one of the workers: it goes on.

Compared with a script for `tf.distribute.MultiWorkerMirroredStrategy`, the three numbered lines changed.
"""

import keras
import numpy as np

import tfdist

strategy = tfdist.ElasticMultiWorkerMirroredStrategy()  # 1: before anything else that TensorFlow does

x = np.random.RandomState(0).randn(1200, 20).astype("float32")
y = x.sum(axis=1, keepdims=True)
dataset = tfdist.data.elastic_dataset((x, y), global_batch_size=60)  # 2: or x and y to fit, as they are

with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")

# 3: the callback; without it, losing a worker ends the script
model.fit(dataset, epochs=10, callbacks=[tfdist.callbacks.ElasticTraining()], verbose=2)
