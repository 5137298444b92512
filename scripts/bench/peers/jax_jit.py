"""Trains one of the models in JAX, as in a typical script: data in memory, a jitted step, one process on all available cores.

Prints one JSON object per line: for compilation, the first step, each epoch and the end. Images are stored as [N,28,28,1],
which is faster in XLA than PyTorch's layout.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy
from flags import batch_sizes, limit, parse_arguments, peak_memory_bytes, print_event, read_raw

TEST_BATCH = 1000


def convolve(weights, name, x):
    """Convolves without padding and adds the bias."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=numbers) + weights[f"{name}.bias"]


def max_pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def net(weights, x):
    x = max_pool(jax.nn.relu(convolve(weights, "conv1", x)))
    x = max_pool(jax.nn.relu(convolve(weights, "conv2", x)))
    return linear(weights, "fc2", jax.nn.relu(linear(weights, "fc1", x.reshape(len(x), -1))))


def lenet(weights, x):
    x = max_pool(jax.nn.relu(convolve(weights, "conv1", x)))
    x = max_pool(jax.nn.relu(convolve(weights, "conv2", x)))
    x = jax.nn.relu(linear(weights, "fc1", x.reshape(len(x), -1)))
    return linear(weights, "fc3", jax.nn.relu(linear(weights, "fc2", x)))


def mlp(weights, x):
    x = jnp.tanh(linear(weights, "fc1", x.reshape(len(x), -1)))
    return linear(weights, "fc3", jnp.tanh(linear(weights, "fc2", x)))


MODELS = {"net": net, "lenet": lenet, "mlp": mlp}
FLATTENED = {"net": (50, 4, 4), "lenet": (16, 5, 5)}  # channels, height and width of fc1's input


def read_weights(arguments):
    """Returns PyTorch's weights in JAX's layouts: kernels [H,W,in,out], matrices [in,out]."""
    weights = dict(numpy.load(arguments.weights))
    for name, value in weights.items():
        if value.ndim == 4:
            value = value.transpose(2, 3, 1, 0)
        elif name == "fc1.weight" and arguments.model in FLATTENED:
            value = value.reshape(-1, *FLATTENED[arguments.model]).transpose(2, 3, 1, 0).reshape(-1, len(value))
        elif value.ndim == 2:
            value = value.T
        weights[name] = jnp.asarray(value)
    return weights


def read_set(arguments, part):
    images, labels = (numpy.frombuffer(data, numpy.uint8) for data in read_raw(arguments, part))
    count = limit(arguments, part) or len(labels)
    images = (images.reshape(-1, 28, 28, 1)[:count] / numpy.float32(255) - numpy.float32(arguments.mean)) / numpy.float32(arguments.std)
    return images, labels[:count].astype(numpy.int32)


def make_functions(arguments):
    """Returns two jitted functions: the training step, and one that counts correct predictions."""
    dtype = jnp.bfloat16 if arguments.precision == "bf16" else jnp.float32
    model = MODELS[arguments.model]

    def scores(weights, images):
        weights = jax.tree.map(lambda value: value.astype(dtype), weights)
        return model(weights, images.astype(dtype)).astype(jnp.float32)

    def loss_of(weights, images, labels):
        chances = jax.nn.log_softmax(scores(weights, images))
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, velocity, images, labels):
        loss, change = jax.value_and_grad(loss_of)(weights, images, labels)
        if arguments.momentum:
            change = velocity = jax.tree.map(lambda old, new: arguments.momentum * old + new, velocity, change)
        return jax.tree.map(lambda value, new: value - arguments.learning_rate * new, weights, change), velocity, loss

    return step, jax.jit(lambda weights, images, labels: (scores(weights, images).argmax(axis=1) == labels).sum())


def main():
    arguments = parse_arguments(__doc__)
    weights = read_weights(arguments)
    velocity = jax.tree.map(jnp.zeros_like, weights) if arguments.momentum else {}
    images, labels = read_set(arguments, "train")
    test_images, test_labels = read_set(arguments, "t10k")
    step, count_right = make_functions(arguments)

    begin = time.perf_counter()
    sizes = batch_sizes(arguments, len(labels))
    steps = {size: step.lower(weights, velocity, images[:size], labels[:size]).compile() for size in sizes}
    count_right = count_right.lower(weights, test_images[:TEST_BATCH], test_labels[:TEST_BATCH]).compile()
    print_event("compiled", seconds=time.perf_counter() - begin)

    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        order = numpy.random.default_rng(epoch).permutation(len(labels))
        losses = []
        for place in range(0, len(order), arguments.batch_size):
            chosen = order[place : place + arguments.batch_size]
            weights, velocity, loss = steps[len(chosen)](weights, velocity, images[chosen], labels[chosen])
            losses.append((loss, len(chosen)))
            if epoch == 0 and place == 0:
                loss.block_until_ready()
                print_event("first_step")
        train_loss = sum(float(loss) * count for loss, count in losses) / len(labels)  # waits for all steps
        train_seconds = time.perf_counter() - begin
        right = sum(int(count_right(weights, test_images[place : place + TEST_BATCH], test_labels[place : place + TEST_BATCH]))
                    for place in range(0, len(test_labels), TEST_BATCH))
        print_event("epoch", epoch=epoch + 1, train_seconds=train_seconds, train_loss=train_loss, test_accuracy=right / len(test_labels))
    print_event("end", peak_memory_bytes=peak_memory_bytes())


if __name__ == "__main__":
    main()
