/* The update rules: one function per optimizer over one run of n elements.
 *
 * Each follows the order of operations of Keras 3's update_step, in float32, so
 * results agree with it to rounding; those of torch follow torch.optim's. `s` holds the slots one after another, each
 * `pitch` floats after the one before: pitch is n for a row of a table and the
 * block's length for a dense block. w, s: INOUT; g: IN. What precedes the rule
 * (scale, clipping, weight decay) is in apply.h.
 */
#ifndef SHOAL_STEPS_H
#define SHOAL_STEPS_H

#include <math.h>

#include "clones.h"

/* Every rule: its number, and its name in optimizers.py and in the functions below. */
#define SHOAL_EACH_RULE(of)                                       \
    of(SHOAL_SGD, sgd)                                            \
    of(SHOAL_MOMENTUM, momentum)                                  \
    of(SHOAL_NESTEROV, nesterov)                                  \
    of(SHOAL_ADAGRAD, adagrad)                                    \
    of(SHOAL_ROWWISE_ADAGRAD, rowwise_adagrad)                    \
    of(SHOAL_RMSPROP, rmsprop)                                    \
    of(SHOAL_RMSPROP_MOMENTUM, rmsprop_momentum)                  \
    of(SHOAL_RMSPROP_CENTERED, rmsprop_centered)                  \
    of(SHOAL_RMSPROP_CENTERED_MOMENTUM, rmsprop_centered_momentum) \
    of(SHOAL_ADAM, adam)                                          \
    of(SHOAL_AMSGRAD, amsgrad)                                    \
    of(SHOAL_FTRL, ftrl)                                          \
    of(SHOAL_TORCH_MOMENTUM, torch_momentum)                      \
    of(SHOAL_TORCH_ADAGRAD, torch_adagrad)                        \
    of(SHOAL_TORCH_RMSPROP, torch_rmsprop)                        \
    of(SHOAL_TORCH_RMSPROP_MOMENTUM, torch_rmsprop_momentum)

enum { SHOAL_EACH_RULE(SHOAL_NUMBER) SHOAL_RULES };
static const char *const shoal_rule_names[] = {SHOAL_EACH_RULE(SHOAL_NAME)};

/* Every constant: its place in what shoal_step_of reads, and its name in OptimizerSpec. */
#define SHOAL_EACH_CONSTANT(of)                               \
    of(SHOAL_OF_MOMENTUM, momentum)                           \
    of(SHOAL_OF_RHO, rho)                                     \
    of(SHOAL_OF_BETA_1, beta_1)                               \
    of(SHOAL_OF_BETA_2, beta_2)                               \
    of(SHOAL_OF_EPSILON, epsilon)                             \
    of(SHOAL_OF_POWER, learning_rate_power)                   \
    of(SHOAL_OF_L1, l1_regularization_strength)               \
    of(SHOAL_OF_L2, l2_regularization_strength)               \
    of(SHOAL_OF_SHRINKAGE, l2_shrinkage_regularization_strength) \
    of(SHOAL_OF_BETA, beta)                                   \
    of(SHOAL_OF_DECAY, weight_decay)                          \
    of(SHOAL_OF_CLIP_VALUE, clipvalue)                        \
    of(SHOAL_OF_CLIP_NORM, clipnorm)                          \
    of(SHOAL_OF_NESTEROV, nesterov)                           \
    of(SHOAL_OF_TORCH, torch)

enum { SHOAL_EACH_CONSTANT(SHOAL_NUMBER) SHOAL_CONSTANTS };
static const char *const shoal_constant_names[] = {SHOAL_EACH_CONSTANT(SHOAL_NAME)};

/* The constants of an optimizer and of one update. */
typedef struct {
    int rule;
    float momentum;    /* SGD, RMSprop */
    float rho;         /* RMSprop */
    float keep_first;  /* 1 - rho, 1 - beta_1 */
    float keep_second; /* 1 - beta_2 */
    float epsilon;
    float power;       /* FTRL: -learning_rate_power */
    float l1, l2, shrinkage, beta; /* FTRL */
    float clip_value;  /* 0: none */
    float clip_norm;   /* 0: none */
    float decay;       /* weight decay; 0: none */
    double beta_1, beta_2; /* Adam */
    int torch;         /* as torch.optim has the rule */
    int nesterov;      /* torch_momentum */
    /* of one update, set by shoal_step_at */
    float rate;        /* learning rate */
    float kept;        /* torch: of a weight, after its decay */
    float alpha;       /* Adam: the rate with both bias corrections */
    float l2_now;      /* FTRL: l2 + beta / (2 rate) */
    float scale;       /* multiplies every gradient */
} shoal_step;

/* c: SHOAL_CONSTANTS numbers, each in its place. */
static shoal_step shoal_step_of(int rule, const double *c) {
    shoal_step p;
    memset(&p, 0, sizeof p);
    p.rule = rule;
    p.momentum = (float)c[SHOAL_OF_MOMENTUM];
    p.rho = (float)c[SHOAL_OF_RHO];
    p.beta_1 = c[SHOAL_OF_BETA_1];
    p.beta_2 = c[SHOAL_OF_BETA_2];
    p.torch = c[SHOAL_OF_TORCH] != 0.0;
    p.nesterov = c[SHOAL_OF_NESTEROV] != 0.0;
    const int is_adam = rule == SHOAL_ADAM || rule == SHOAL_AMSGRAD;
    p.keep_first = (float)(1.0 - c[is_adam ? SHOAL_OF_BETA_1 : SHOAL_OF_RHO]);
    p.keep_second = (float)(1.0 - c[SHOAL_OF_BETA_2]);
    p.epsilon = (float)c[SHOAL_OF_EPSILON];
    p.power = (float)-c[SHOAL_OF_POWER];
    p.l1 = (float)c[SHOAL_OF_L1];
    p.l2 = (float)c[SHOAL_OF_L2];
    p.shrinkage = (float)c[SHOAL_OF_SHRINKAGE];
    p.beta = (float)c[SHOAL_OF_BETA];
    p.decay = (float)c[SHOAL_OF_DECAY];
    p.clip_value = (float)c[SHOAL_OF_CLIP_VALUE];
    p.clip_norm = (float)c[SHOAL_OF_CLIP_NORM];
    p.scale = 1.0f;
    return p;
}

/* Keras takes float32 powers of float32 betas; at small steps 1 - beta_2^step
 * keeps few digits, so the same roundings are made here. PyTorch takes them in
 * double, and adds epsilon to the corrected root. */
static shoal_step shoal_step_at(const shoal_step *base, double rate, double scale, double step) {
    shoal_step p = *base;
    p.rate = (float)rate;
    p.scale = (float)scale;
    p.kept = (float)(1.0 - rate * p.decay);
    if (p.rule == SHOAL_ADAM || p.rule == SHOAL_AMSGRAD) {
        if (p.torch) {
            const double root = sqrt(1.0 - pow(p.beta_2, step));
            p.alpha = (float)(rate * root / (1.0 - pow(p.beta_1, step)));
            p.epsilon = (float)(p.epsilon * root);
        } else {
            float first = powf((float)p.beta_1, (float)step);
            float second = powf((float)p.beta_2, (float)step);
            p.alpha = p.rate * sqrtf(1.0f - second) / (1.0f - first);
        }
    }
    p.l2_now = p.l2;
    if (p.rule == SHOAL_FTRL) p.l2_now = p.l2 + p.beta / (2.0f * p.rate);
    return p;
}

#define SHOAL_STEP(name)                                                             \
    SHOAL_INLINE void shoal_step_##name(float *restrict w, float *restrict s,        \
                                        const float *restrict g, const int64_t n,    \
                                        const int64_t pitch, const shoal_step *p)

SHOAL_STEP(sgd) {
    (void)s; (void)pitch;
    const float rate = p->rate;
    for (int64_t i = 0; i < n; i++) w[i] -= rate * g[i];
}

SHOAL_STEP(momentum) {
    (void)pitch;
    const float rate = p->rate, momentum = p->momentum;
    for (int64_t i = 0; i < n; i++) {
        float m = s[i] * momentum - g[i] * rate;
        s[i] = m;
        w[i] += m;
    }
}

SHOAL_STEP(nesterov) {
    (void)pitch;
    const float rate = p->rate, momentum = p->momentum;
    for (int64_t i = 0; i < n; i++) {
        float m = s[i] * momentum - g[i] * rate;
        s[i] = m;
        w[i] += m * momentum - g[i] * rate;
    }
}

SHOAL_STEP(adagrad) {
    (void)pitch;
    const float rate = p->rate, epsilon = p->epsilon;
    for (int64_t i = 0; i < n; i++) {
        float a = s[i] + g[i] * g[i];
        s[i] = a;
        w[i] -= rate * g[i] / __builtin_sqrtf(a + epsilon);
    }
}

/* Sum of squares in 16 partial sums, joined in a fixed order: the same on every machine.
 * Vector types, as the compiler joins the halves of an array through memory (a third of
 * a row-wise Adagrad update). */
SHOAL_INLINE float shoal_sum_squares(const float *g, const int64_t n) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight low = {0}, high = {0}, x;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        memcpy(&x, g + i, sizeof x);
        low += x * x;
        memcpy(&x, g + i + 8, sizeof x);
        high += x * x;
    }
    for (int64_t j = 0; i + j < n; j++) {
        if (j < 8) low[j] += g[i + j] * g[i + j];
        else high[j - 8] += g[i + j] * g[i + j];
    }
    low += high;
    const four sum = __builtin_shufflevector(low, low, 0, 1, 2, 3) +
                     __builtin_shufflevector(low, low, 4, 5, 6, 7);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* One accumulator per row: the mean of the row's squared gradients (as TorchRec
 * and FBGEMM keep it); epsilon stands where Keras's Adagrad has it, so dim 1 is that
 * rule up to rounding. */
SHOAL_STEP(rowwise_adagrad) {
    (void)pitch;
    float a = s[0] + shoal_sum_squares(g, n) / (float)n;
    s[0] = a;
    const float rate = p->rate / __builtin_sqrtf(a + p->epsilon);
    for (int64_t i = 0; i < n; i++) w[i] -= rate * g[i];
}

SHOAL_INLINE void shoal_rmsprop(float *restrict w, float *restrict s, const float *restrict g,
                                const int64_t n, const int64_t pitch, const shoal_step *p,
                                const int momentum, const int centered) {
    float *restrict velocity = s, *restrict increments = s + pitch;
    float *restrict average = momentum ? s + 2 * pitch : s + pitch;
    const float rate = p->rate, rho = p->rho, keep = p->keep_first, epsilon = p->epsilon;
    for (int64_t i = 0; i < n; i++) {
        float v = rho * velocity[i] + keep * (g[i] * g[i]);
        velocity[i] = v;
        float denominator;
        if (centered) {
            float a = rho * average[i] + keep * g[i];
            average[i] = a;
            denominator = v - a * a + epsilon;
        } else {
            denominator = v + epsilon;
        }
        float increment = rate * g[i] / __builtin_sqrtf(denominator);
        if (momentum) {
            increment = p->momentum * increments[i] + increment;
            increments[i] = increment;
        }
        w[i] -= increment;
    }
}

SHOAL_STEP(rmsprop) { shoal_rmsprop(w, s, g, n, pitch, p, 0, 0); }
SHOAL_STEP(rmsprop_momentum) { shoal_rmsprop(w, s, g, n, pitch, p, 1, 0); }
SHOAL_STEP(rmsprop_centered) { shoal_rmsprop(w, s, g, n, pitch, p, 0, 1); }
SHOAL_STEP(rmsprop_centered_momentum) { shoal_rmsprop(w, s, g, n, pitch, p, 1, 1); }

SHOAL_STEP(adam) {
    float *restrict first = s, *restrict second = s + pitch;
    const float alpha = p->alpha, b1 = p->keep_first, b2 = p->keep_second, epsilon = p->epsilon;
    for (int64_t i = 0; i < n; i++) {
        float m = first[i] + (g[i] - first[i]) * b1;
        float v = second[i] + (g[i] * g[i] - second[i]) * b2;
        first[i] = m;
        second[i] = v;
        w[i] -= m * alpha / (__builtin_sqrtf(v) + epsilon);
    }
}

SHOAL_STEP(amsgrad) {
    float *restrict first = s, *restrict second = s + pitch, *restrict highest = s + 2 * pitch;
    const float alpha = p->alpha, b1 = p->keep_first, b2 = p->keep_second, epsilon = p->epsilon;
    for (int64_t i = 0; i < n; i++) {
        float m = first[i] + (g[i] - first[i]) * b1;
        float v = second[i] + (g[i] * g[i] - second[i]) * b2;
        float h = highest[i] > v ? highest[i] : v;
        first[i] = m;
        second[i] = v;
        highest[i] = h;
        w[i] -= m * alpha / (__builtin_sqrtf(h) + epsilon);
    }
}

/* McMahan et al. (2013), "Ad Click Prediction", with Keras's beta and shrinkage.
 * What the accumulator's power rises by is a difference of nearly equal numbers. For
 * the usual power 1/2 it is written so that no digits cancel, for others it is taken
 * in double; results are then closer to Keras run in float64 than Keras's own in
 * float32 (0.9e-6 against 2.3e-6 after 200 steps). pow is the only place where
 * results can differ by a unit between C libraries. */
SHOAL_INLINE void shoal_ftrl(float *restrict w, float *restrict s, const float *restrict g,
                             const int64_t n, const int64_t pitch, const shoal_step *p,
                             const int square_root) {
    float *restrict accumulator = s, *restrict linear = s + pitch;
    const float rate = p->rate, l1 = p->l1;
    const double power = p->power;
    const float twice_l2 = 2.0f * p->l2_now, shrink = 2.0f * p->shrinkage;
    for (int64_t i = 0; i < n; i++) {
        float used = g[i] + shrink * w[i];
        float a = accumulator[i], square = g[i] * g[i], grown = a + square, root, rise;
        if (square_root) {
            root = __builtin_sqrtf(grown);
            rise = square / (root + __builtin_sqrtf(a));
            rise = square > 0.0f ? rise : 0.0f; /* 0 / 0 where both are zero */
        } else {
            double after = pow((double)grown, power);
            root = (float)after;
            rise = (float)(after - pow((double)a, power));
        }
        float z = linear[i] + (used - rise / rate * w[i]);
        float clipped = z < -l1 ? -l1 : (z > l1 ? l1 : z);
        linear[i] = z;
        accumulator[i] = grown;
        w[i] = (clipped - z) / (root / rate + twice_l2);
    }
}

SHOAL_STEP(ftrl) {
    if (p->power == 0.5f) shoal_ftrl(w, s, g, n, pitch, p, 1);
    else shoal_ftrl(w, s, g, n, pitch, p, 0);
}

/* torch.optim's own forms: the rate is outside of the momentum, and epsilon outside of the root. */

SHOAL_STEP(torch_momentum) {
    (void)pitch;
    const float rate = p->rate, momentum = p->momentum;
    const float now = p->nesterov ? 1.0f : 0.0f, carried = p->nesterov ? momentum : 1.0f;
    for (int64_t i = 0; i < n; i++) {
        float m = s[i] * momentum + g[i];
        s[i] = m;
        w[i] -= rate * (now * g[i] + carried * m);
    }
}

SHOAL_STEP(torch_adagrad) {
    (void)pitch;
    const float rate = p->rate, epsilon = p->epsilon;
    for (int64_t i = 0; i < n; i++) {
        float a = s[i] + g[i] * g[i];
        s[i] = a;
        w[i] -= rate * (g[i] / (__builtin_sqrtf(a) + epsilon));
    }
}

SHOAL_INLINE void shoal_torch_rmsprop(float *restrict w, float *restrict s, const float *restrict g,
                                      const int64_t n, const int64_t pitch, const shoal_step *p,
                                      const int momentum) {
    float *restrict velocity = s, *restrict buffer = s + pitch;
    const float rate = p->rate, rho = p->rho, keep = p->keep_first, epsilon = p->epsilon;
    for (int64_t i = 0; i < n; i++) {
        float v = rho * velocity[i] + keep * (g[i] * g[i]);
        velocity[i] = v;
        float step = g[i] / (__builtin_sqrtf(v) + epsilon);
        if (momentum) {
            step = p->momentum * buffer[i] + step;
            buffer[i] = step;
        }
        w[i] -= rate * step;
    }
}

SHOAL_STEP(torch_rmsprop) { shoal_torch_rmsprop(w, s, g, n, pitch, p, 0); }
SHOAL_STEP(torch_rmsprop_momentum) { shoal_torch_rmsprop(w, s, g, n, pitch, p, 1); }

#endif
