//! A straight line through times of messages of several lengths.
//!
//! The principal type is [`Line`]. If some lengths lie off the line, others may as well; the margin of the slope counts
//! this, even where repeated times hardly vary.

/// The share of a time that a linear model is not expected to explain.
pub(crate) const MODEL_ERROR: f64 = 0.01;
/// Standard deviations to each side of a 95 % interval.
pub(crate) const CONFIDENCE: f64 = 1.96;

/// The time of one length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinePoint {
    pub(crate) bytes: f64,
    pub(crate) time: f64,
    /// The variance of the time.
    pub(crate) variance: f64,
}

/// A straight line through times of messages that differ in length alone.
pub(crate) struct Line {
    /// The time of a message without bytes.
    pub(crate) begins: f64,
    pub(crate) beta: f64,
    /// Standard deviation of β.
    pub(crate) noise: f64,
}

impl Line {
    /// Fits by weighted least squares; `None` for fewer than two lengths. The last segment of a message adds or saves
    /// the same time at any length, so short messages have the same absolute error as long ones.
    pub(crate) fn through(points: &[LinePoint]) -> Option<Self> {
        let longest = points.iter().map(|point| point.time).fold(0.0, f64::max);
        let weight = |point: &LinePoint| 1.0 / (point.variance + (MODEL_ERROR * longest).powi(2));
        let total: f64 = points.iter().map(weight).sum();
        let mean =
            |of: &dyn Fn(&LinePoint) -> f64| points.iter().map(|point| weight(point) * of(point)).sum::<f64>() / total;
        let (middle, time) = (mean(&|point| point.bytes), mean(&|point| point.time));
        let spread = mean(&|point| (point.bytes - middle).powi(2)) * total;
        // With a single length this is only rounding.
        if points.len() < 2 || spread <= 1e-9 * middle * middle * total {
            return None;
        }
        let beta = mean(&|point| (point.bytes - middle) * point.time) * total / spread;
        let begins = time - beta * middle;
        let pull = |point: &LinePoint| weight(point) * (point.bytes - middle) / spread;
        let scatter = |point: &LinePoint| (point.time - begins - beta * point.bytes).powi(2);
        let repeated: f64 = points.iter().map(|point| pull(point).powi(2) * point.variance).sum();
        // The distance of the given lengths from the line estimates the distance of others. Two lengths are always on
        // their line.
        let freedom = points.len().saturating_sub(2);
        let share = if freedom == 0 { 0.0 } else { points.len() as f64 / freedom as f64 };
        let lengths: f64 = share * points.iter().map(|point| pull(point).powi(2) * scatter(point)).sum::<f64>();
        Some(Self { begins, beta, noise: repeated.max(lengths).sqrt() })
    }
}
