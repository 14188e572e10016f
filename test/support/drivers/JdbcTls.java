import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Rules about TLS with the JDBC driver: the arguments are the ports of four poolers, a folder of
 * certificates, and one of keys in PKCS #8. The first pooler takes SCRAM, the second client
 * certificates, the third shows a certificate for another name. The fourth has an HBA file: in the
 * database `mapped` mallory's certificate proves app_plain, elsewhere a certificate and a password are
 * needed. Reports on standard output as test/support/programs.ts reads it.
 */
public class JdbcTls {
  private interface Rule {
    void check() throws Exception;
  }

  private static final String PASSWORD = "&password=app";
  private static final String WRONG = "&password=wrong";

  /** In TLS 1.3 the alert for a missing certificate races with what the driver sends meanwhile. */
  private static final String WHATEVER = "";

  private static String certs;
  private static String keys;

  public static void main(String[] args) {
    String scram = place(args[0], "app", "app");
    String cert = place(args[1], "app", "app");
    String misnamed = place(args[2], "app", "app");
    String hba = place(args[3], "app", "app");
    String mapped = place(args[3], "mapped", "app_plain");
    certs = args[4];
    keys = args[5];
    Map<String, Rule> rules = new LinkedHashMap<>();
    rules.put("SCRAM with sslmode verify-full", () -> {
      works("app", scram, "verify-full", PASSWORD);
      refused("SASL authentication failed", scram, "ca", WRONG);
    });
    rules.put("a pooler whose certificate is of another authority is refused", () ->
        refused("unable to find valid certification path", scram, "other-ca", PASSWORD));
    rules.put("a pooler whose certificate is for another name is refused by verify-full only", () -> {
      refused("The hostname localhost could not be verified", misnamed, "ca", PASSWORD);
      works("app", misnamed, "verify-ca", PASSWORD);
    });
    rules.put("a client certificate proves the name, without a password", () -> {
      works("app", cert, "verify-full", own("app"));
      refused("certificate authentication failed", cert, "ca", own("mallory"));
      refused(WHATEVER, cert, "ca", "");
    });
    rules.put("an HBA rule maps a certificate to a name, or asks for a password besides", () -> {
      works("app_plain", mapped, "verify-full", own("mallory"));
      refused("certificate authentication failed", mapped, "ca", own("app"));
      works("app", hba, "verify-full", PASSWORD + own("app"));
      refused("SASL authentication failed", hba, "ca", WRONG + own("app"));
      refused(WHATEVER, hba, "ca", PASSWORD);
    });
    rules.put("a cancelled statement fails, and its connection goes on", () -> cancel(scram));
    System.out.println("plan " + rules.size());
    for (Map.Entry<String, Rule> entry : rules.entrySet()) {
      try {
        entry.getValue().check();
        System.out.println("ok " + entry.getKey());
      } catch (Throwable problem) {
        System.out.println("not ok " + entry.getKey());
        problem.printStackTrace(System.out);
      }
    }
  }

  private static String place(String port, String database, String user) {
    return "jdbc:postgresql://localhost:" + port + "/" + database + "?user=" + user;
  }

  private static String own(String name) {
    return "&sslcert=" + certs + "/" + name + ".crt&sslkey=" + keys + "/" + name + ".pk8";
  }

  private static Connection connect(String place, String mode, String ca, String more)
      throws SQLException {
    String trust = "&sslmode=" + mode + "&sslrootcert=" + certs + "/" + ca + ".crt";
    return DriverManager.getConnection(place + trust + "&prepareThreshold=2" + more);
  }

  private static void works(String name, String place, String mode, String more) throws Exception {
    try (Connection connection = connect(place, mode, "ca", more)) {
      answers(connection, name);
    }
  }

  private static void answers(Connection connection, String name) throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int, current_user")) {
      for (int number = 0; number < 10; number++) {
        statement.setInt(1, number);
        try (ResultSet rows = statement.executeQuery()) {
          if (!rows.next() || rows.getInt(1) != number || !name.equals(rows.getString(2))) {
            throw new AssertionError("another row than was asked for");
          }
        }
      }
    }
  }

  private static void refused(String text, String place, String ca, String more) {
    try {
      connect(place, "verify-full", ca, more).close();
    } catch (SQLException problem) {
      for (Throwable each = problem; each != null; each = each.getCause()) {
        if (String.valueOf(each.getMessage()).contains(text)) return;
      }
      throw new AssertionError("refused otherwise", problem);
    }
    throw new AssertionError("it was let in");
  }

  private static void cancel(String place) throws Exception {
    try (Connection connection = connect(place, "verify-full", "ca", PASSWORD);
        Statement statement = connection.createStatement()) {
      statement.setQueryTimeout(1);
      try {
        statement.execute("SELECT pg_sleep(60)");
        throw new AssertionError("it was not cancelled");
      } catch (SQLException problem) {
        if (!"57014".equals(problem.getSQLState())) throw problem;
      }
      answers(connection, "app");
    }
  }
}
