"""The models in PyTorch, as in their original sources. Tests also compare mnist-train with them."""

from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(800, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return functional.log_softmax(self.fc2(x), dim=1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 1024)
        self.fc2 = nn.Linear(1024, 1024)
        self.fc3 = nn.Linear(1024, 10)

    def forward(self, images):
        x = self.fc1(images.flatten(1)).tanh()
        return self.fc3(self.fc2(x).tanh())


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


class Residual(nn.Module):
    def __init__(self, channels_in, channels, strides=1, use_1x1conv=False):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, stride=strides)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv3 = nn.Conv2d(channels_in, channels, 1, stride=strides) if use_1x1conv else None
        self.bn1 = nn.BatchNorm2d(channels)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (self.conv3(x) if self.conv3 else x))


def resnet18():
    def block(channels_in, channels, first=False):
        return nn.Sequential(Residual(channels_in, channels, 1 if first else 2, not first), Residual(channels, channels))

    net = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    for number, (channels_in, channels) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
        net.add_module(f"resnet_block{number + 1}", block(channels_in, channels, first=number == 0))
    net.add_module("global_avg_pool", nn.AdaptiveAvgPool2d((1, 1)))
    net.add_module("fc", nn.Sequential(nn.Flatten(), nn.Linear(512, 10)))
    return net


def own_network():
    """Returns the network of configs/own_network.json."""
    def residual(channels_in, channels):
        return Sum(nn.Sequential(*normed(channels_in, channels, 3, channels // channels_in), nn.ReLU(), *normed(channels, channels, 3)),
                   nn.Sequential(*normed(channels_in, channels, 1, 2)) if channels != channels_in else nn.Identity())

    return nn.Sequential(*normed(1, 16, 3, 2), nn.ReLU(), residual(16, 16), residual(16, 16), residual(16, 32),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10))


def normed(channels_in, channels, kernel_size, stride=1):
    """Returns a convolution without bias, followed by batch norm."""
    return nn.Conv2d(channels_in, channels, kernel_size, stride, kernel_size // 2, bias=False), nn.BatchNorm2d(channels)


class Sum(nn.Module):
    """ReLU of the sum of two branches."""

    def __init__(self, branch, shortcut):
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x):
        return functional.relu(self.branch(x) + self.shortcut(x))


def vgg():
    """Returns the network of peers/vgg.json, with padding and without batch norm."""
    def convolution(channels_in, channels):
        return nn.Conv2d(channels_in, channels, 3, padding=1), nn.ReLU()

    return nn.Sequential(*convolution(1, 64), nn.MaxPool2d(2), *convolution(64, 128), nn.MaxPool2d(2),
                         *convolution(128, 256), *convolution(256, 256), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(256 * 9, 256), nn.ReLU(), nn.Linear(256, 10))


def torchvision_resnet18():
    from torchvision.models import resnet18 as published

    return published(num_classes=10)


MODELS = {"net": Net, "mlp": Mlp, "lenet": LeNet, "resnet18": resnet18, "own_network": own_network, "vgg": vgg,
          "torchvision-resnet18": torchvision_resnet18}
