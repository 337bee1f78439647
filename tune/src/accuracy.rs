//! How well predictions agree with measurements, and what a model has left out.
//!
//! The principal functions are [`q_error`], [`kendall_tau`] and [`robust_line`].

/// Of more points, so many are compared, evenly spaced.
const MOST_POINTS: usize = 1000;

/// By which factor a prediction is wrong, in whichever direction [1]: 1 is exact.
///
/// [1] Moerkotte, Neumann, Steidl, "Preventing bad plans by bounding the impact of cardinality estimation errors", VLDB 2009.
pub fn q_error(predicted: f64, measured: f64) -> f64 {
    match predicted > 0.0 && measured > 0.0 {
        true => (predicted / measured).max(measured / predicted),
        false if predicted == measured => 1.0,
        false => f64::INFINITY,
    }
}

/// Kendall's τ-b of pairs of numbers [1]: 1 if both order them alike, −1 if oppositely. Equal numbers count for neither.
/// `None` if one of the two is the same everywhere.
///
/// [1] Kendall, "The treatment of ties in ranking problems", Biometrika 33(3), 1945.
pub fn kendall_tau(pairs: &[(f64, f64)]) -> Option<f64> {
    let pairs = thinned(pairs);
    let (mut balance, mut untied) = (0.0, [0.0_f64; 2]);
    for (index, one) in pairs.iter().enumerate() {
        for other in &pairs[..index] {
            let [first, second] = [one.0.total_cmp(&other.0), one.1.total_cmp(&other.1)];
            untied[0] += f64::from(u8::from(first.is_ne()));
            untied[1] += f64::from(u8::from(second.is_ne()));
            balance += f64::from(first as i8) * f64::from(second as i8);
        }
    }
    let norm = (untied[0] * untied[1]).sqrt();
    (norm > 0.0).then(|| balance / norm)
}

/// The line y = a + b·x through most points, as (a, b): b is the median of all slopes [1], and a that of what remains. If all
/// points have the same x, b is 0. `None` without points.
///
/// [1] Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950; Sen 1968.
pub fn robust_line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let points = thinned(points);
    let mut slopes = Vec::new();
    for (index, one) in points.iter().enumerate() {
        let others = points[..index].iter().filter(|other| other.0 != one.0);
        slopes.extend(others.map(|other| (one.1 - other.1) / (one.0 - other.0)));
    }
    let slope = middle(slopes).unwrap_or(0.0);
    Some((middle(points.iter().map(|(x, y)| y - slope * x).collect())?, slope))
}

fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(MOST_POINTS).max(1);
    points.iter().step_by(step).copied().collect()
}

/// The median.
fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_alike_in_both_directions() {
        assert_eq!([q_error(2.0, 1.0), q_error(1.0, 2.0), q_error(3.0, 3.0), q_error(0.0, 0.0)], [2.0, 2.0, 1.0, 1.0]);
        assert_eq!(q_error(0.0, 1.0), f64::INFINITY);
    }

    #[test]
    fn order_is_what_tau_measures() {
        let tau = |pairs: &[(f64, f64)]| kendall_tau(pairs);
        assert_eq!(tau(&[(1.0, 10.0), (2.0, 20.0), (3.0, 900.0)]), Some(1.0));
        assert_eq!(tau(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), Some(-1.0));
        // One of six pairs is the other way round.
        assert_eq!(tau(&[(1.0, 1.0), (2.0, 2.0), (3.0, 4.0), (4.0, 3.0)]), Some(4.0 / 6.0));
        assert_eq!(tau(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn a_few_wild_points_do_not_move_the_line() {
        let mut points: Vec<(f64, f64)> = (0..30).map(|x| (f64::from(x), 5.0 + 2.0 * f64::from(x))).collect();
        points.extend([(3.0, 1e6), (7.0, -1e6), (9.0, 1e9)]);
        let (begin, slope) = robust_line(&points).unwrap();
        assert!((begin - 5.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9, "{begin} {slope}");
        assert_eq!(robust_line(&[(4.0, 1.0), (4.0, 3.0)]), Some((2.0, 0.0)));
        assert_eq!(robust_line(&[]), None);
    }
}
