//! Statistics that outliers do not change.
//!
//! Repetitions further than five scaled median absolute deviations from their median are outliers \[1\]. The rest
//! counts with its median. Where the question is what a machine is able to do, it counts with the mean of its better
//! half.
//!
//! \[1\] Leys et al., "Detecting outliers: do not use standard deviation around the mean", JESP 49 (2013).

/// Scaled median absolute deviations beyond which a repetition is an outlier.
const OUTLIER: f64 = 5.0;
/// The standard deviation of a normal distribution in median absolute deviations.
const MAD_SCALE: f64 = 1.4826;
/// The resolution of clocks, as a share of a time.
const TICK: f64 = 0.01;

/// The middle value, or the mean of the two middle values; zero for an empty list.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// The median of some times, and their scaled median absolute deviation.
fn deviation(times: &[f64]) -> (f64, f64) {
    let middle = median(times.to_vec());
    (middle, MAD_SCALE * median(times.iter().map(|time| (time - middle).abs()).collect()))
}

/// The least time that is not an outlier, the median, and the largest time that is not an outlier.
pub(crate) fn usual(times: &[f64]) -> (f64, f64, f64) {
    let (middle, spread) = deviation(times);
    // With a coarse clock all times may be equal and the spread zero; then only grossly different times are outliers.
    let reach = OUTLIER * spread.max(TICK * middle);
    (middle - reach, middle, middle + reach)
}

/// The median without outliers, its variance, and how many values are left.
pub(crate) fn middle(mut times: Vec<f64>) -> (f64, f64, usize) {
    let (low, _, high) = usual(&times);
    times.retain(|time| (low..=high).contains(time));
    let (time, spread) = deviation(&times);
    // The variance of the median of normal samples is π/2 times that of their mean.
    (time, spread * spread * std::f64::consts::FRAC_PI_2 / times.len().max(1) as f64, times.len())
}

/// The median without outliers, and its variance.
pub(crate) fn robust_middle(times: &[f64]) -> (f64, f64) {
    let (time, variance, _) = middle(times.to_vec());
    (time, variance)
}

/// The mean of the quicker half, and its variance. The better times show what a machine can carry: a lost segment
/// delays some repetitions much, but never all of them.
pub(crate) fn undisturbed(times: &[f64]) -> (f64, f64) {
    let mut quicker = times.to_vec();
    quicker.sort_by(f64::total_cmp);
    quicker.truncate(times.len().div_ceil(2));
    let count = quicker.len().max(1) as f64;
    let mean = quicker.iter().sum::<f64>() / count;
    let scatter = quicker.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    // Half of a normal distribution is 0.6 times as wide as the whole, and the place of the cut is uncertain, too.
    (mean, 3.0 * scatter / count)
}
