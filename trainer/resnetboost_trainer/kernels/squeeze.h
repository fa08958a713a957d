// Squeeze and excitation (Hu et al. 2018, eq. 3): gates s = sigmoid(W2 relu(W1 z + b1) + b2) from channel means z.
#pragma once

#include <cstdint>

// W1 is (inner, channels), W2 (channels, inner), both row-major.
struct Excitation {
  int64_t images, channels, inner;
  const float *w1, *b1, *w2, *b2;
};

struct ExcitationGradients {
  float *w1, *b1, *w2, *b2;
};

// Means (images, channels) -> hidden (images, inner) and gates (images, channels).
void excite(const Excitation& by, const float* means, float* hidden, float* gates);

// Gradient of the gates -> those of the parameters, of the means, and of what relu and sigmoid are applied to: the
// latter is written over that of the gates.
void excite_gradient(const Excitation& by, const float* means, const float* hidden, const float* gates,
                     float* gates_gradient, const ExcitationGradients& found, float* hidden_gradient, float* means_gradient);
