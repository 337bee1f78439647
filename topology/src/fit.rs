//! From measured times to α and β.
//!
//! The principal functions are [`fit_link`] and [`fit_resource`]. A single message of b bytes takes α + β·b, and
//! n messages back to back take λ + n·(γ + β·b): γ is what each message costs its link, λ the delay that only
//! the last one shows, and α = λ + γ. Sweeping both n and b tells the two apart, and so whether α occupies.
//!
//! Times are skewed by whatever else the machine does, so each setting counts with the median of its repetitions
//! after rejecting those further than five scaled median absolute deviations away \[1\]. The medians are fitted by
//! weighted least squares under non-negativity; a weight is one over the variance of the median plus the share
//! of the time that the linear model itself cannot explain, which keeps small and large messages both in sight.
//! Shared resources are fitted by the median of pairwise slopes \[2\], because their samples come in few sizes.
//!
//! \[1\] Leys et al., "Detecting outliers: do not use standard deviation around the mean", JESP 49 (2013).
//! \[2\] Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968).

use crate::{Latency, Micros, MicrosPerByte};
use std::collections::BTreeMap;

/// One timed exchange.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Bytes in each message.
    pub bytes: u64,
    /// Messages sent back to back.
    pub messages: u32,
    /// From the start until the last byte has arrived.
    pub time: Micros,
}

/// What a link costs, by measurement. Margins are half-widths of 95 % confidence intervals.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkFit {
    /// Time per message.
    pub alpha: Micros,
    /// How far α may be off.
    pub alpha_margin: Micros,
    /// Time per byte.
    pub beta: MicrosPerByte,
    /// How far β may be off.
    pub beta_margin: MicrosPerByte,
    /// Whether the larger part of α occupies the link.
    pub latency: Latency,
    /// The largest relative error with which the fit reproduces the median of a setting.
    pub worst_error: f64,
    /// How many samples were used.
    pub samples: usize,
    /// How many were rejected.
    pub outliers: usize,
}

/// What a shared resource costs, by measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct ResourceFit {
    /// Time per byte of all its links together.
    pub beta: MicrosPerByte,
    /// Half-width of the 95 % confidence interval.
    pub beta_margin: MicrosPerByte,
}

/// Why samples cannot be fitted.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// α and β cannot be told apart.
    #[error("the samples have {found} different message sizes, but it takes two to tell α from β")]
    TooFewSizes {
        /// How many sizes there are.
        found: usize,
    },
    /// A time that no clock shows.
    #[error("a measured time is {0} µs, but must lie between a picosecond and thirty years")]
    BadTime(f64),
}

/// The share of a time that the linear model is not expected to explain.
const MODEL_ERROR: f64 = 0.01;
/// Scaled median absolute deviations beyond which a repetition is an outlier.
const OUTLIER: f64 = 5.0;
/// The standard deviation of a normal distribution in median absolute deviations.
const MAD_SCALE: f64 = 1.4826;
/// Standard deviations to each side of a 95 % interval.
const CONFIDENCE: f64 = 1.96;

/// α and β of one link.
///
/// # Errors
/// [`FitError`] for impossible times, or fewer than two message sizes.
pub fn fit_link(samples: &[Sample]) -> Result<LinkFit, FitError> {
    let points = points(samples)?;
    let used = points.iter().map(|point| point.samples).sum();
    let best = SHAPES
        .iter()
        .filter_map(|shape| solve(&points, shape))
        .min_by(|left, right| left.misfit.total_cmp(&right.misfit))
        .expect("a proportional model with a non-negative factor always fits positive times");
    let [delay, message, byte] = best.value;
    let covariance = &best.covariance;
    let alpha_variance = covariance[0][0] + covariance[1][1] + 2.0 * covariance[0][1];
    let error = |point: &Point| (best.predict(point) / point.time - 1.0).abs();
    Ok(LinkFit {
        alpha: Micros(delay + message),
        alpha_margin: Micros(CONFIDENCE * alpha_variance.max(0.0).sqrt()),
        beta: MicrosPerByte(byte),
        beta_margin: MicrosPerByte(CONFIDENCE * covariance[2][2].max(0.0).sqrt()),
        latency: if delay > message { Latency::Pipelines } else { Latency::Occupies },
        worst_error: points.iter().map(error).fold(0.0, f64::max),
        samples: used,
        outliers: samples.len() - used,
    })
}

/// β of something that several links share, from (total bytes, time until the last of them had arrived): the
/// slope of time over bytes, in which every α cancels.
///
/// # Errors
/// [`FitError`] for impossible times, or fewer than two totals.
pub fn fit_resource(samples: &[Sample]) -> Result<ResourceFit, FitError> {
    let points = points(samples)?;
    let mut slopes = Vec::new();
    for (index, right) in points.iter().enumerate() {
        for left in &points[..index] {
            let bytes = right.bytes() - left.bytes();
            if bytes != 0.0 {
                // The noise of both medians carries over to the slope.
                let noise = (left.variance + right.variance).sqrt() / bytes.abs();
                slopes.push(Slope { beta: (right.time - left.time) / bytes, noise });
            }
        }
    }
    slopes.sort_by(|left, right| left.beta.total_cmp(&right.beta));
    let Some(&Slope { beta, noise }) = slopes.get(slopes.len() / 2) else {
        return Err(FitError::TooFewSizes { found: 1 });
    };
    let spread = MAD_SCALE * median(slopes.iter().map(|slope| (slope.beta - beta).abs()).collect());
    Ok(ResourceFit { beta: MicrosPerByte(beta.max(0.0)), beta_margin: MicrosPerByte(CONFIDENCE * noise.max(spread)) })
}

/// The rise of time over bytes between two settings.
struct Slope {
    beta: f64,
    noise: f64,
}

/// The middle value, or the mean of the two; zero without any.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// The repetitions of one setting, boiled down.
struct Point {
    bytes: u64,
    messages: u32,
    time: f64,
    /// Of the median.
    variance: f64,
    samples: usize,
}

impl Point {
    fn bytes(&self) -> f64 {
        self.bytes as f64 * f64::from(self.messages)
    }

    /// What λ, γ and β are multiplied by.
    fn row(&self) -> [f64; 3] {
        [1.0, f64::from(self.messages), self.bytes()]
    }

    fn weight(&self) -> f64 {
        1.0 / (self.variance + (MODEL_ERROR * self.time).powi(2))
    }
}

fn points(samples: &[Sample]) -> Result<Vec<Point>, FitError> {
    let mut settings: BTreeMap<(u64, u32), Vec<f64>> = BTreeMap::new();
    for sample in samples {
        // Squares of these, and their inverses, are far from overflow.
        if !(1e-6..1e15).contains(&sample.time.0) {
            return Err(FitError::BadTime(sample.time.0));
        }
        settings.entry((sample.bytes, sample.messages)).or_default().push(sample.time.0);
    }
    let mut sizes: Vec<u64> = settings.keys().map(|(bytes, _)| *bytes).collect();
    sizes.dedup();
    if sizes.len() < 2 {
        return Err(FitError::TooFewSizes { found: sizes.len() });
    }
    Ok(settings.into_iter().map(|((bytes, messages), times)| point(bytes, messages, times)).collect())
}

fn point(bytes: u64, messages: u32, mut times: Vec<f64>) -> Point {
    let deviation = |times: &[f64]| {
        let middle = median(times.to_vec());
        (middle, MAD_SCALE * median(times.iter().map(|time| (time - middle).abs()).collect()))
    };
    let (middle, spread) = deviation(&times);
    // A clock that ticks coarsely gives a spread of zero; then only the grossly different are outliers.
    let reach = OUTLIER * spread.max(MODEL_ERROR * middle);
    times.retain(|time| (time - middle).abs() <= reach);
    let (time, spread) = deviation(&times);
    // The variance of the median of normal samples is π/2 times that of their mean.
    let variance = spread * spread * std::f64::consts::FRAC_PI_2 / times.len() as f64;
    Point { bytes, messages, time, variance, samples: times.len() }
}

/// Which of λ, γ and β may differ from zero. Where two fit equally well the earlier wins: a sweep without
/// repeated messages cannot tell λ from γ, and then α occupies.
const SHAPES: [&[usize]; 7] = [&[1, 2], &[0, 2], &[0, 1, 2], &[2], &[1], &[0], &[0, 1]];

/// One least-squares solution; absent parameters are zero.
struct Solution {
    value: [f64; 3],
    covariance: [[f64; 3]; 3],
    misfit: f64,
}

impl Solution {
    fn predict(&self, point: &Point) -> f64 {
        point.row().iter().zip(self.value).map(|(factor, value)| factor * value).sum()
    }
}

/// Minimises Σ weight·(time − row·value)² over the parameters in `shape`; `None` if they cannot be told apart or
/// one comes out negative (the best non-negative fit then has another shape).
fn solve(points: &[Point], shape: &[usize]) -> Option<Solution> {
    let size = shape.len();
    // Columns differ by six orders of magnitude; scaled to at most one, elimination loses nothing.
    let largest = |parameter: usize| points.iter().map(|point| point.row()[parameter]).fold(0.0, f64::max);
    let scale: Vec<f64> = shape.iter().map(|parameter| largest(*parameter)).collect();
    if scale.contains(&0.0) {
        return None;
    }
    // [normal matrix | right side | identity], reduced to [identity | solution | inverse].
    let mut table = vec![vec![0.0; size + 1 + size]; size];
    for point in points {
        let row: Vec<f64> =
            shape.iter().zip(&scale).map(|(parameter, scale)| point.row()[*parameter] / scale).collect();
        for i in 0..size {
            for j in 0..size {
                table[i][j] += point.weight() * row[i] * row[j];
            }
            table[i][size] += point.weight() * row[i] * point.time;
        }
    }
    for (i, row) in table.iter_mut().enumerate() {
        row[size + 1 + i] = 1.0;
    }
    reduce(&mut table)?;
    let mut solution = Solution { value: [0.0; 3], covariance: [[0.0; 3]; 3], misfit: 0.0 };
    for (i, &parameter) in shape.iter().enumerate() {
        solution.value[parameter] = table[i][size] / scale[i];
        for (j, &other) in shape.iter().enumerate() {
            solution.covariance[parameter][other] = table[i][size + 1 + j] / (scale[i] * scale[j]);
        }
    }
    if solution.value.iter().any(|value| *value < 0.0) {
        return None;
    }
    let residual = |point: &Point| point.weight() * (solution.predict(point) - point.time).powi(2);
    solution.misfit = points.iter().map(residual).sum();
    // Where the model fits worse than the noise explains, the intervals widen accordingly.
    let freedom = points.len().saturating_sub(size).max(1) as f64;
    let widening = (solution.misfit / freedom).max(1.0);
    solution.covariance.iter_mut().flatten().for_each(|entry| *entry *= widening);
    Some(solution)
}

/// Gauss–Jordan elimination of a symmetric positive definite matrix, in place; `None` if it is singular.
fn reduce(table: &mut [Vec<f64>]) -> Option<()> {
    let size = table.len();
    let largest = (0..size).map(|i| table[i][i]).fold(0.0, f64::max);
    for pivot in 0..size {
        let factor = table[pivot][pivot];
        if factor <= 1e-12 * largest {
            return None;
        }
        table[pivot].iter_mut().for_each(|entry| *entry /= factor);
        let row = table[pivot].clone();
        for (_, other) in table.iter_mut().enumerate().filter(|(index, _)| *index != pivot) {
            let factor = other[pivot];
            other.iter_mut().zip(&row).for_each(|(entry, pivot)| *entry -= factor * pivot);
        }
    }
    Some(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small multiplicative generator: seeded, and independent of any crate's stream.
    pub(crate) struct Noise(pub(crate) u64);

    impl Noise {
        pub(crate) fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// A factor near one, skewed upward, and now and then far off.
        pub(crate) fn factor(&mut self) -> f64 {
            let jitter = 1.0 + 0.02 * (self.uniform() - 0.5) + 0.01 * self.uniform() * self.uniform();
            if self.uniform() < 0.08 { jitter * (2.0 + 20.0 * self.uniform()) } else { jitter }
        }
    }

    fn sweep(delay: f64, message: f64, beta: f64, noise: &mut Noise) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (bytes, messages) in [(64, 1), (64, 16), (4096, 1), (4096, 8), (65_536, 1), (1 << 20, 1), (1 << 18, 4)] {
            for _ in 0..15 {
                let time = delay + f64::from(messages) * (message + beta * bytes as f64);
                samples.push(Sample { bytes, messages, time: Micros(time * noise.factor()) });
            }
        }
        samples
    }

    #[test]
    fn recovers_known_costs_from_noisy_samples() {
        let mut noise = Noise(7);
        for (delay, message, beta, latency) in [
            (0.0, 0.7, 2e-5, Latency::Occupies),
            (1.3, 0.05, 8e-5, Latency::Pipelines),
            (0.4, 2.0, 1e-4, Latency::Occupies),
            (30.0, 1.0, 1e-3, Latency::Pipelines),
        ] {
            for _ in 0..20 {
                let fit = fit_link(&sweep(delay, message, beta, &mut noise)).unwrap();
                let alpha = delay + message;
                assert!((fit.alpha.0 / alpha - 1.0).abs() < 0.05, "α {alpha}: {fit:?}");
                assert!((fit.beta.0 / beta - 1.0).abs() < 0.03, "β {beta}: {fit:?}");
                assert_eq!(fit.latency, latency, "{fit:?}");
                assert!((fit.alpha.0 - alpha).abs() <= 2.0 * fit.alpha_margin.0, "{fit:?}");
                assert!((fit.beta.0 - beta).abs() <= 2.0 * fit.beta_margin.0, "{fit:?}");
                assert!(fit.worst_error < 0.05, "{fit:?}");
            }
        }
    }

    #[test]
    fn rejects_a_minority_of_wild_times() {
        let mut samples = sweep(0.0, 1.0, 1e-4, &mut Noise(1));
        for sample in samples.iter_mut().step_by(3) {
            sample.time = Micros(sample.time.0 * 50.0);
        }
        let fit = fit_link(&samples).unwrap();
        assert!((fit.alpha.0 - 1.0).abs() < 0.1 && (fit.beta.0 / 1e-4 - 1.0).abs() < 0.05, "{fit:?}");
        assert!(fit.outliers >= samples.len() / 3, "{fit:?}");
    }

    #[test]
    fn costs_are_never_negative() {
        let falling = [(64, 9.0), (1024, 8.0), (1 << 20, 7.0)];
        let samples = falling.map(|(bytes, time)| Sample { bytes, messages: 1, time: Micros(time) });
        let fit = fit_link(&samples).unwrap();
        assert!(fit.beta.0 == 0.0 && fit.alpha.0 > 6.9, "{fit:?}");
    }

    #[test]
    fn refuses_what_cannot_be_fitted() {
        let sample = |bytes, time| Sample { bytes, messages: 1, time: Micros(time) };
        assert_eq!(fit_link(&[]), Err(FitError::TooFewSizes { found: 0 }));
        assert_eq!(fit_link(&[sample(8, 1.0), sample(8, 2.0)]), Err(FitError::TooFewSizes { found: 1 }));
        assert_eq!(fit_link(&[sample(8, 1.0), sample(9, 0.0)]), Err(FitError::BadTime(0.0)));
        assert!(matches!(fit_link(&[sample(8, f64::NAN)]), Err(FitError::BadTime(_))));
        assert_eq!(fit_resource(&[sample(8, 1.0)]), Err(FitError::TooFewSizes { found: 1 }));
        let same_total = [Sample { bytes: 8, messages: 2, time: Micros(1.0) }, sample(16, 1.0)];
        assert_eq!(fit_resource(&same_total), Err(FitError::TooFewSizes { found: 1 }));
    }

    #[test]
    fn a_shared_resource_is_the_slope_over_all_bytes() {
        let mut noise = Noise(3);
        let mut samples = Vec::new();
        for bytes in [1u64 << 18, 1 << 20, 1 << 22] {
            for _ in 0..9 {
                let time = (12.0 + 8e-5 * bytes as f64) * noise.factor();
                samples.push(Sample { bytes, messages: 1, time: Micros(time) });
            }
        }
        let fit = fit_resource(&samples).unwrap();
        assert!((fit.beta.0 / 8e-5 - 1.0).abs() < 0.03, "{fit:?}");
    }
}
