//! From measured times to α and β.
//!
//! The principal function is [`fit_link`]. A single message of b bytes takes α + β·b, and
//! n messages back to back take λ + n·(γ + β·b): γ is what each message costs its link, λ the delay that only
//! the last one shows, and α = λ + γ. Sweeping both n and b tells the two apart, and so whether α occupies.
//!
//! Times are skewed by other work of the machine. Each setting therefore counts with the median of its repetitions,
//! without outliers. The medians are fitted by weighted least squares under non-negativity. The weight of a median is
//! one over the sum of its variance and the error that is expected of the linear model. So small and large messages
//! both count.
//!
//! Shaped links differ from the line in two ways. A shaper lets a first burst pass at full speed, so the line through
//! long messages begins before the time of the shortest message. There, β is the slope of long messages, α is the time
//! of the shortest, and the credit is the difference. A shaper also lets the last segment of up to 64 KB pass as a
//! whole, so repeating one size repeats the same error; sizes that differ a little average it out. Wherever the line
//! misses the shortest messages, α is their time.

use crate::line::{self, CONFIDENCE, Line, MODEL_ERROR};
use crate::robust::middle;
use crate::{Bytes, Latency, Micros, MicrosPerByte};
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
    /// The part of the margin of α that more repetitions reduce. The rest comes from the machine, which is not linear.
    pub alpha_noise: Micros,
    /// The same for β.
    pub beta_noise: MicrosPerByte,
    /// Bytes that pass at once before β shows; zero unless the link is shaped.
    pub burst: Bytes,
    /// Whether the larger part of α occupies the link.
    pub latency: Latency,
    /// The largest relative error with which the fit reproduces the median of a setting.
    pub worst_error: f64,
    /// How many samples were used.
    pub samples: usize,
    /// How many were rejected.
    pub outliers: usize,
}

impl LinkFit {
    /// The time of one message, in microseconds.
    fn predict(&self, bytes: u64) -> f64 {
        self.alpha.0 + self.beta.0 * bytes as f64
    }
}

/// What a shared resource costs, by measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct ResourceFit {
    /// Time per byte of all its links together.
    pub beta: MicrosPerByte,
    /// Half-width of the 95 % confidence interval.
    pub beta_margin: MicrosPerByte,
    /// Time per message, beside the α of links; zero unless the resource is the cores of a machine.
    pub alpha: Micros,
    /// Half-width of the 95 % confidence interval.
    pub alpha_margin: Micros,
    /// What shows that it is shared, in words.
    pub evidence: String,
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
    /// A time that no clock can show.
    #[error("a measured time is {0} µs, but must lie between a picosecond and thirty years")]
    BadTime(f64),
}

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
    let alpha_variance = |covariance: &[[f64; 3]; 3]| covariance[0][0] + covariance[1][1] + 2.0 * covariance[0][1];
    let margin = |variance: f64| CONFIDENCE * variance.max(0.0).sqrt();
    let error = |point: &FitPoint| (best.predict(point) / point.time - 1.0).abs();
    let linear = LinkFit {
        alpha: Micros(delay + message),
        alpha_margin: Micros(margin(alpha_variance(covariance))),
        beta: MicrosPerByte(byte),
        beta_margin: MicrosPerByte(margin(covariance[2][2])),
        alpha_noise: Micros(margin(alpha_variance(&best.noise))),
        beta_noise: MicrosPerByte(margin(best.noise[2][2])),
        burst: Bytes(0.0),
        latency: if delay > message { Latency::Pipelines } else { Latency::Occupies },
        worst_error: points.iter().map(error).fold(0.0, f64::max),
        samples: used,
        outliers: samples.len() - used,
    };
    let fit = shaped(&points, &linear).unwrap_or(linear);
    Ok(by_shortest(&points, &fit).unwrap_or(fit))
}

/// The relative error with which a line may miss the shortest message.
const MISSED: f64 = 0.2;

/// A message belongs to the long ones if it takes this many times as long as the shortest,
const BEYOND: f64 = 5.0;
/// and if it has more bytes than a few segments, the last of which might pass at once.
const SEGMENTS: u64 = 192 << 10;

/// The fit with α from the shortest messages alone, where the line misses them. Long messages then follow another law
/// (credit of a shaper, another protocol), and their line does not predict a message without bytes.
fn by_shortest(points: &[FitPoint], fit: &LinkFit) -> Option<LinkFit> {
    let one = points.iter().filter(|point| point.messages == 1).min_by_key(|point| point.bytes)?;
    if (fit.predict(one.bytes) / one.time - 1.0).abs() <= MISSED {
        return None;
    }
    let alpha = (one.time - fit.beta.0 * one.bytes()).max(0.0);
    let noise = Micros(CONFIDENCE * one.variance.sqrt());
    Some(LinkFit {
        alpha: Micros(alpha),
        alpha_margin: Micros(noise.0 + MODEL_ERROR * alpha),
        alpha_noise: noise,
        latency: latency_of_shortest(points, alpha, fit.beta.0).unwrap_or(fit.latency),
        ..fit.clone()
    })
}

/// Whether α occupies: by how much several of the shortest messages take longer than one. `None` without such a
/// setting.
fn latency_of_shortest(points: &[FitPoint], alpha: f64, beta: f64) -> Option<Latency> {
    let shortest = points.iter().map(|point| point.bytes).min()?;
    let mut tiny = points.iter().filter(|point| point.bytes == shortest);
    let one = tiny.next().filter(|point| point.messages == 1)?;
    let several = tiny.next_back()?;
    let each = (several.time - one.time) / f64::from(several.messages - 1) - beta * shortest as f64;
    Some(if each < alpha / 2.0 { Latency::Pipelines } else { Latency::Occupies })
}

/// The fit of a link that lets a first burst pass. There the line through the longest single messages begins clearly
/// before the time of the shortest.
fn shaped(points: &[FitPoint], linear: &LinkFit) -> Option<LinkFit> {
    let single = || points.iter().filter(|point| point.messages == 1);
    let first = single().min_by_key(|point| point.bytes)?;
    let whole = single().max_by_key(|point| point.bytes)?;
    // A message that takes much longer than α has used up the credit.
    let passes = |point: &FitPoint| point.bytes < SEGMENTS || point.time < BEYOND * first.time;
    let is_long = |point: &&FitPoint| 2 * point.bytes + 64 >= whole.bytes || !passes(point);
    let long: Vec<&FitPoint> = single().filter(is_long).collect();
    let placed: Vec<line::LinePoint> = long.iter().map(|point| point.placed()).collect();
    let line = Line::through(&placed).filter(|_| 2 * first.bytes + 64 < whole.bytes)?;
    let alpha = (first.time - line.beta * first.bytes as f64).max(0.0);
    // The error of the line where it begins: its slope is uncertain, and times are not exactly linear. A few lengths
    // say little about the error of others.
    let few = 1.0 + 2.0 / long.len().saturating_sub(2).max(1) as f64;
    let doubt = 2.0 * CONFIDENCE * few * line.noise * whole.bytes as f64 + MODEL_ERROR * whole.time;
    // Where the line misses the shortest message or a quicker one, credit is the better explanation, however small.
    let off = |point: &FitPoint| linear.predict(point.bytes) / point.time - 1.0;
    let misses = (off(first).abs() > MISSED || single().any(|point| off(point) > MISSED)) && line.begins < alpha;
    if line.beta <= 0.0 || !misses && line.begins >= alpha.min(linear.alpha.0) - doubt {
        return None;
    }
    let (beta_noise, alpha_noise) = (CONFIDENCE * line.noise, CONFIDENCE * first.variance.sqrt());
    Some(LinkFit {
        alpha: Micros(alpha),
        alpha_margin: Micros(alpha_noise + MODEL_ERROR * alpha),
        alpha_noise: Micros(alpha_noise),
        beta: MicrosPerByte(line.beta),
        beta_margin: MicrosPerByte(beta_noise + MODEL_ERROR * line.beta),
        beta_noise: MicrosPerByte(beta_noise),
        burst: Bytes((alpha - line.begins) / line.beta),
        latency: latency_of_shortest(points, alpha, line.beta).unwrap_or(linear.latency),
        worst_error: ((alpha + line.beta * whole.bytes as f64) / whole.time - 1.0).abs(),
        ..linear.clone()
    })
}

/// The repetitions of one setting as one point.
struct FitPoint {
    bytes: u64,
    messages: u32,
    time: f64,
    /// The variance of the median.
    variance: f64,
    samples: usize,
}

impl FitPoint {
    fn bytes(&self) -> f64 {
        self.bytes as f64 * f64::from(self.messages)
    }

    /// The factors of λ, γ and β.
    fn row(&self) -> [f64; 3] {
        [1.0, f64::from(self.messages), self.bytes()]
    }

    fn placed(&self) -> line::LinePoint {
        line::LinePoint { bytes: self.bytes as f64, time: self.time, variance: self.variance }
    }

    fn weight(&self) -> f64 {
        1.0 / (self.variance + (MODEL_ERROR * self.time).powi(2))
    }
}

fn points(samples: &[Sample]) -> Result<Vec<FitPoint>, FitError> {
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

fn point(bytes: u64, messages: u32, times: Vec<f64>) -> FitPoint {
    let (time, variance, samples) = middle(times);
    FitPoint { bytes, messages, time, variance, samples }
}

/// Which of λ, γ and β may differ from zero. Where two shapes fit equally well, the earlier wins: a sweep without
/// repeated messages cannot distinguish λ from γ, and then α occupies.
const SHAPES: [&[usize]; 7] = [&[1, 2], &[0, 2], &[0, 1, 2], &[2], &[1], &[0], &[0, 1]];

/// One least-squares solution; absent parameters are zero.
struct FitSolution {
    value: [f64; 3],
    covariance: [[f64; 3]; 3],
    /// The covariance that the scatter of the times alone causes.
    noise: [[f64; 3]; 3],
    misfit: f64,
}

impl FitSolution {
    fn predict(&self, point: &FitPoint) -> f64 {
        point.row().iter().zip(self.value).map(|(factor, value)| factor * value).sum()
    }
}

/// Minimises Σ weight·(time − row·value)² over the parameters in `shape`; `None` if they cannot be told apart or
/// one comes out negative (the best non-negative fit then has another shape).
fn solve(points: &[FitPoint], shape: &[usize]) -> Option<FitSolution> {
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
    let mut solution = FitSolution { value: [0.0; 3], covariance: [[0.0; 3]; 3], noise: [[0.0; 3]; 3], misfit: 0.0 };
    for (i, &parameter) in shape.iter().enumerate() {
        solution.value[parameter] = table[i][size] / scale[i];
        for (j, &other) in shape.iter().enumerate() {
            solution.covariance[parameter][other] = table[i][size + 1 + j] / (scale[i] * scale[j]);
        }
    }
    if solution.value.iter().any(|value| *value < 0.0) {
        return None;
    }
    for point in points {
        // The effect of this point's time on each parameter.
        let row = point.row();
        let pull = |parameter: usize| -> f64 {
            (0..3).map(|other| solution.covariance[parameter][other] * row[other]).sum::<f64>() * point.weight()
        };
        let pulls = [pull(0), pull(1), pull(2)];
        for (one, of_one) in pulls.iter().enumerate() {
            for (other, of_other) in pulls.iter().enumerate() {
                solution.noise[one][other] += of_one * of_other * point.variance;
            }
        }
    }
    let residual = |point: &FitPoint| point.weight() * (solution.predict(point) - point.time).powi(2);
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
            self.wild_in(0.08)
        }

        /// The same, with this share of the factors far off.
        pub(crate) fn wild_in(&mut self, share: f64) -> f64 {
            let jitter = 1.0 + 0.02 * (self.uniform() - 0.5) + 0.01 * self.uniform() * self.uniform();
            if self.uniform() < share { jitter * (2.0 + 20.0 * self.uniform()) } else { jitter }
        }
    }

    fn sweep(delay: f64, message: f64, beta: f64, noise: &mut Noise) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (bytes, messages) in
            [(64, 1), (64, 16), (4096, 1), (4096, 8), (65_536, 1), (1 << 19, 1), (1 << 20, 1), (1 << 18, 4)]
        {
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
    }

    #[test]
    fn the_credit_of_a_shaped_link_is_no_bandwidth() {
        // 25 MB/s behind 64 KB that pass at 5 GB/s; 30 µs of α.
        let mut noise = Noise(3);
        let mut samples = Vec::new();
        for (bytes, messages) in [(64u64, 1u32), (64, 16), (40_000, 1), (80_000, 8), (320_000, 1), (640_000, 1)] {
            for _ in 0..15 {
                let total = bytes as f64 * f64::from(messages);
                let time = 30.0 + f64::from(messages) + total * 2e-4 + (total - 65_536.0).max(0.0) * 0.0398;
                samples.push(Sample { bytes, messages, time: Micros(time * noise.factor()) });
            }
        }
        let fit = fit_link(&samples).unwrap();
        assert!((fit.beta.0 / 0.04 - 1.0).abs() < 0.03, "{fit:?}");
        assert!((fit.alpha.0 / 31.0 - 1.0).abs() < 0.1, "{fit:?}");
        assert!((fit.burst.0 / 65_536.0 - 1.0).abs() < 0.3, "{fit:?}");
        assert!((fit.beta.0 - 0.04).abs() <= 2.0 * fit.beta_margin.0, "{fit:?}");
    }

    #[test]
    fn a_credit_that_long_messages_hardly_notice_is_seen_in_short_ones() {
        // Measured between two hosts at 20 Mbit/s: 2.39 MB/s of payload, 16 KB at once, segments of up to 16 KB.
        let measured = [
            (64, 1, 86.0),
            (64, 16, 270.0),
            (30_872, 1, 6_430.0),
            (61_745, 8, 203_900.0),
            (246_981, 1, 99_200.0),
            (262_417, 1, 106_600.0),
            (277_854, 1, 113_100.0),
            (324_163, 1, 132_200.0),
            (339_599, 1, 139_400.0),
            (401_344, 1, 165_000.0),
            (416_781, 1, 172_400.0),
            (463_090, 1, 189_200.0),
            (478_526, 1, 198_800.0),
            (493_963, 1, 202_200.0),
        ];
        let samples = measured.iter().flat_map(|&(bytes, messages, time)| {
            [0.99, 1.0, 1.0, 1.01].map(|factor| Sample { bytes, messages, time: Micros(time * factor) })
        });
        let fit = fit_link(&samples.collect::<Vec<_>>()).unwrap();
        assert!((fit.beta.0 / 0.4182 - 1.0).abs() < 0.04 && fit.alpha.0 < 150.0, "{fit:?}");
    }

    #[test]
    fn a_message_without_bytes_costs_what_the_shortest_do() {
        // A small credit that long messages hardly notice, and the line not at all.
        let settings = [(64u64, 1u32), (64, 16), (40_000, 1), (80_000, 8), (320_000, 1), (640_000, 1)];
        let time = |bytes: f64, messages: f64| 60.0 + 2.0 * messages + 0.04 * (bytes * messages - 16_000.0).max(0.0);
        let samples = settings.iter().flat_map(|&(bytes, messages)| {
            let time = Micros(time(bytes as f64, f64::from(messages)));
            std::iter::repeat_n(Sample { bytes, messages, time }, 9)
        });
        let fit = fit_link(&samples.collect::<Vec<_>>()).unwrap();
        assert!((fit.alpha.0 - 62.0).abs() < 3.0 && fit.latency == Latency::Pipelines, "{fit:?}");
        assert!((fit.beta.0 / 0.04 - 1.0).abs() < 0.03, "{fit:?}");
    }

    #[test]
    fn more_repetitions_make_the_noise_smaller() {
        let noise_of = |repetitions: usize| {
            let mut noise = Noise(5);
            let samples: Vec<Sample> = (0..repetitions).flat_map(|_| sweep(1.0, 2.0, 1e-4, &mut noise)).collect();
            fit_link(&samples).unwrap()
        };
        let (few, many) = (noise_of(1), noise_of(16));
        assert!(many.beta_noise.0 < 0.5 * few.beta_noise.0 && many.alpha_noise.0 < 0.5 * few.alpha_noise.0);
        assert!(many.beta_noise.0 <= many.beta_margin.0 && few.beta_noise.0 <= few.beta_margin.0, "{few:?}");
    }
}
