#!/usr/bin/perl
# A step service in Perl, with nothing but what Debian's perl-base has: it reserves goods.
#
# Watch for: the engine may call twice for the same work, because an answer was lost. The header Idempotency-Key is the
# same each time, so the goods are reserved once. The first call of all is answered by 503: the engine calls again.
use strict;
use warnings;
use IO::Socket::INET;

my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ENV{PORT} || 0, Listen => 16, ReuseAddr => 1)
    or die "cannot listen: $@";
$| = 1;
print 'http://127.0.0.1:', $server->sockport, "\n";

my (%reserved, $calls, $shelves);
while (my $client = $server->accept) {
    my ($method, $path, $headers, $body) = read_request($client) or next;
    my ($status, $type, $answer) = answer($method, $path, $headers, $body);
    my $retry = $status =~ /^503/ ? "Retry-After: 0\r\n" : '';
    print $client "HTTP/1.1 $status\r\nContent-Type: $type\r\n${retry}Content-Length: ", length $answer,
        "\r\nConnection: close\r\n\r\n$answer";
    close $client;
}

sub answer {
    my ($method, $path, $headers, $body) = @_;
    return ('200 OK', 'application/json', '{}') if $path eq '/health';
    return ('503 Service Unavailable', 'text/plain', 'still starting') unless $calls++;
    my ($item) = $body =~ /"item"\s*:\s*"((?:[^"\\]|\\.)*)"/;
    return problem('the body must have an item') unless defined $item;
    return problem("we do not sell $item") unless $item =~ /^(?:book|piano)$/;
    my $shelf = $reserved{ $headers->{'idempotency-key'} } //= ++$shelves;
    return ('200 OK', 'application/json', qq({"shelf": $shelf}));
}

sub problem {
    my ($detail) = @_;
    $detail =~ s/[^\w ]/?/g;
    return ('422 Unprocessable Content', 'application/problem+json', qq({"status": 422, "detail": "$detail"}));
}

sub read_request {
    my ($client) = @_;
    my ($method, $path) = (<$client> // '') =~ m{^(\w+) (\S+) HTTP/1} or return;
    my %headers;
    while (defined(my $line = <$client>)) {
        last if $line =~ /^\r?\n$/;
        $headers{ lc $1 } = $2 if $line =~ /^([^:\s]+):\s*(.*?)\r?\n$/;
    }
    read $client, my $body, $headers{'content-length'} || 0;
    return ($method, $path, \%headers, $body);
}
