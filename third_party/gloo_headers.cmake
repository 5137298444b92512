# Gloo's headers, which LibTorch's wheels lack although libtorch_cpu contains Gloo. Only src/comm/gloo_backend.cpp needs them,
# for the type c10d::ProcessGroupGloo; nothing from libgloo is linked.

find_path(MNIST_TRAIN_GLOO_INCLUDE gloo/context.h)
if(NOT MNIST_TRAIN_GLOO_INCLUDE)
  mnist_train_fetch(folder PACKAGE libgloo-dev
    ARCHIVE g/gloo/libgloo-dev_0.0~git20220518.5b14351-3_amd64.deb
    SHA256 80529c9fd8af452faf489e686b94bf87075965c40673803810c4f41634b1e299)
  set(MNIST_TRAIN_GLOO_INCLUDE "${folder}/usr/include")
endif()
mnist_train_headers(mnist_train_gloo_headers "${MNIST_TRAIN_GLOO_INCLUDE}")
