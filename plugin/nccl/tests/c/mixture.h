/* Every place that an argument can be in: six registers of integers, eight of floats, and the stack, where a structure of 128 bytes
 * and some more fit. The mixture of all of them depends on each value and its place. */
struct stack {
    long at[20];
};

#define ARGUMENTS                                                                                        \
    long a0, long a1, long a2, long a3, long a4, long a5, double x0, double x1, double x2, double x3,    \
        double x4, double x5, double x6, double x7, struct stack s
#define VALUES a0, a1, a2, a3, a4, a5, x0, x1, x2, x3, x4, x5, x6, x7, s

static inline long mixture(long number, long a0, long a1, long a2, long a3, long a4, long a5, double x0, double x1, double x2,
                           double x3, double x4, double x5, double x6, double x7, struct stack s) {
    unsigned long mixed = number;
    long integers[6] = {a0, a1, a2, a3, a4, a5};
    double floats[8] = {x0, x1, x2, x3, x4, x5, x6, x7};
    for (int at = 0; at < 6; at++) mixed = mixed * 0x9e3779b97f4a7c15u + (unsigned long)integers[at];
    for (int at = 0; at < 8; at++) mixed = mixed * 0x9e3779b97f4a7c15u + (unsigned long)(long)(floats[at] * 1024);
    for (int at = 0; at < 20; at++) mixed = mixed * 0x9e3779b97f4a7c15u + (unsigned long)s.at[at];
    return (long)mixed;
}
