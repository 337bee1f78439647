//! Lanes and bells in all orders that the memory model of C11 allows: `make models`.

use runtime::models;

#[test]
fn short_messages_arrive_whole_and_no_ring_is_lost() {
    models::short_messages_arrive_whole_and_no_ring_is_lost();
}

#[test]
fn an_offer_is_read_or_revoked_but_not_both() {
    models::an_offer_is_read_or_revoked_but_not_both();
}

#[test]
fn fragments_arrive_in_order() {
    models::fragments_arrive_in_order();
}
